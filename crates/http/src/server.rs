//! HTTP server of mode http, and its part in each worker.

use std::pin::Pin;
use std::sync::Arc;

use convey_proxy::{ClientBytes, ClientStream, HttpMode, QuicClient, ServeStream, StreamEnd};

use crate::stack::{self, DecideRequest, UsualStack};
use crate::worker::HttpWorker;
use crate::{connection, http3};

/// HTTP server for the clients of frontends in mode http.
#[derive(Debug)]
pub struct HttpServer<S = UsualStack> {
    stack: S,
}

/// HTTP server of one worker.
#[derive(Debug, Clone)]
pub(crate) struct WorkerServer<S> {
    pub(crate) stack: S,
    pub(crate) worker: Arc<HttpWorker>,
}

impl HttpServer {
    /// Returns convey's own server, which decides by the configuration alone. Its code is compiled
    /// in this crate. A server with another stack is compiled in the crate that names the stack.
    pub fn usual() -> Arc<dyn HttpMode> {
        Arc::new(HttpServer::new(stack::usual()))
    }
}

impl<S: DecideRequest> HttpServer<S> {
    /// Returns a server in which `stack` decides on each request, for example [`stack::usual`]
    /// within a layer of your own.
    pub fn new(stack: S) -> HttpServer<S> {
        HttpServer { stack }
    }
}

impl<S: DecideRequest> HttpMode for HttpServer<S> {
    fn for_worker(&self) -> Arc<dyn ServeStream> {
        Arc::new(WorkerServer { stack: self.stack.clone(), worker: Arc::default() })
    }
}

impl<S: DecideRequest> ServeStream for WorkerServer<S> {
    fn serve(&self, client: ClientStream, bytes: ClientBytes) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        connection::serve(client, bytes, self.clone())
    }

    fn serve_quic(&self, client: ClientStream, quic: QuicClient) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (over, server) = (client.over(), self.clone());
        Box::pin(async move {
            let connection = quic.connection.clone();
            let end = tokio::select! {
                biased;
                reason = over => StreamEnd::Reset(reason),
                end = http3::serve(&client, quic, &server) => end,
            };
            http3::close(&connection, end);
            client.end_quic(end);
        })
    }

    fn each_second(&self) {
        self.worker.each_second();
    }
}
