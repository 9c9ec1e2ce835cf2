//! Task of a client's connection in mode http.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Future that serves an admitted client until its connection has ended.
pub(crate) type ServingFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Task of a client's connection: its admission, and then its service. Each is a box, so that an
/// idle connection holds no memory for its admission, and the allocation of the task is small.
pub(crate) enum ClientTask {
    /// Returns the service; `None` if the client was refused.
    Admission(Pin<Box<dyn Future<Output = Option<ServingFuture>> + Send>>),
    Service(ServingFuture),
}

impl Future for ClientTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut *self {
                ClientTask::Admission(admission) => match ready!(admission.as_mut().poll(cx)) {
                    Some(serving) => *self = ClientTask::Service(serving),
                    None => return Poll::Ready(()),
                },
                ClientTask::Service(serving) => return serving.as_mut().poll(cx),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contained::Contained;

    #[test]
    fn task_of_a_client_is_no_larger_than_its_two_boxes_allow() {
        // The library adds 96 bytes, and aligns the task to 128.
        assert!(size_of::<Contained<ClientTask>>() <= 24);
    }
}
