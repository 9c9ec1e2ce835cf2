//! HTTP server of mode http, and its part in each worker.

use std::pin::Pin;
use std::sync::Arc;

use convey_proxy::{ClientBytes, ClientStream, HttpMode, QuicClient, ServeStream};

use crate::stack::{self, DecideRequest, UsualStack};
use crate::worker::HttpWorker;
use crate::{connection, http3};

/// HTTP server for the clients of frontends in mode http.
#[derive(Debug)]
pub struct HttpServer<S = UsualStack> {
    stack: S,
}

/// HTTP server of one worker, which its connections and streams share.
#[derive(Debug)]
pub(crate) struct WorkerServer<S> {
    pub(crate) stack: S,
    pub(crate) worker: HttpWorker,
}

/// Handle of the server for the worker.
#[derive(Debug)]
struct ServerHandle<S>(Arc<WorkerServer<S>>);

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
        let server = WorkerServer { stack: self.stack.clone(), worker: HttpWorker::default() };
        Arc::new(ServerHandle(Arc::new(server)))
    }
}

impl<S: DecideRequest> ServeStream for ServerHandle<S> {
    fn serve(&self, client: ClientStream, bytes: ClientBytes) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(connection::serve(client, bytes, self.0.clone()))
    }

    fn serve_quic(&self, client: ClientStream, quic: QuicClient) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(http3::serve(client, quic, self.0.clone()))
    }

    fn each_second(&self) {
        self.0.worker.each_second();
    }
}
