//! Full accept queues: connections that the kernel has accepted, and that convey has not accepted
//! yet. Pure.

use std::net::SocketAddr;

use crate::Diagnosis;

/// Accept queue of a listening socket of a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptQueue {
    /// Address of the socket.
    pub at: SocketAddr,
    /// Name of the frontend.
    pub frontend: String,
    /// Connections in the queue.
    pub waiting: u32,
    /// Maximum length of the queue (`net.core.somaxconn`).
    pub most: u32,
}

/// Findings for frontends with a full accept queue. Each frontend has one finding, which names its
/// fullest queue.
pub(super) fn full(queues: &[AcceptQueue]) -> Vec<Diagnosis> {
    let mut full: Vec<&AcceptQueue> = queues.iter().filter(|queue| is_full(queue)).collect();
    full.sort_by_key(|queue| (&queue.frontend, std::cmp::Reverse(queue.waiting)));
    full.dedup_by_key(|queue| &queue.frontend);
    full.into_iter().map(diagnosis).collect()
}

fn is_full(queue: &AcceptQueue) -> bool {
    queue.most > 0 && u64::from(queue.waiting) * 10 >= u64::from(queue.most) * 9
}

fn diagnosis(AcceptQueue { at, frontend, waiting, most }: &AcceptQueue) -> Diagnosis {
    let seen = format!(
        "an accept queue of {at} (frontend {frontend}) holds {waiting} of at most {most} connections"
    );
    let why = "Once the queue is full, the kernel drops the SYNs of further clients. convey accepts no connections while the frontend has reached `max_connections`, \
               while convey lacks file descriptors, or while its process is stopped: `convey status` shows the first two causes. \
               A burst of clients also fills a short queue: raise `net.core.somaxconn`, then restart convey.";
    Diagnosis::error("accept-queue", seen, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fullest_queue_of_a_frontend_is_named_once() {
        let queue = |frontend: &str, waiting, most| AcceptQueue {
            at: "10.0.0.100:80".parse().unwrap(),
            frontend: frontend.to_owned(),
            waiting,
            most,
        };
        let queues = [queue("a", 5, 4), queue("a", 9, 4), queue("b", 8, 10), queue("c", 0, 0)];
        let found = full(&queues);
        assert_eq!(found.len(), 1);
        assert!(found[0].seen.starts_with("an accept queue of 10.0.0.100:80"));
        assert_eq!(full(&[queue("b", 9, 10)]).len(), 1);
    }
}
