use std::task::Waker;

use convey_http_core::{HeadLimits, Trailers};
use proptest::prelude::*;

use super::*;

/// Source that returns data in pieces, and then trailers.
struct Source {
    pieces: std::vec::IntoIter<Vec<u8>>,
    last: Option<Frame<Bytes>>,
    released: usize,
}

impl DataSource for &mut Source {
    fn poll_data(&mut self, _: &mut Context<'_>, _: usize) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(self.pieces.next().map(|piece| Ok(piece.into())))
    }

    fn poll_last(&mut self, _: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>> {
        Poll::Ready(Ok(self.last.take().unwrap_or(Frame::End)))
    }

    fn release(&mut self, len: usize) -> io::Result<()> {
        self.released += len;
        Ok(())
    }
}

fn source(pieces: Vec<Vec<u8>>) -> Source {
    let status = [(&b"grpc-status"[..], &b"0"[..])].into_iter();
    let trailers = Trailers::of_stream(status, &HeadLimits::OF_REQUEST_TRAILERS).unwrap().unwrap();
    Source { pieces: pieces.into_iter(), last: Some(Frame::Trailers(trailers)), released: 0 }
}

fn next<S: DataSource>(body: &mut RequestBody<S>) -> io::Result<Frame<Bytes>> {
    match body.poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(frame) => frame,
        Poll::Pending => panic!("the source is ready"),
    }
}

proptest! {
    #[test]
    fn body_is_whole_and_released_once_however_often_its_beginning_is_repeated(
        sizes in prop::collection::vec(0..5_000_usize, 0..8),
        repeats in prop::collection::vec((0..4_usize, any::<bool>()), 0..4),
    ) {
        let pieces: Vec<Vec<u8>> =
            sizes.iter().enumerate().map(|(n, size)| vec![n as u8; *size]).collect();
        let whole = pieces.concat();
        let mut source = source(pieces);
        let mut body = RequestBody::new(&mut source, BodyFraming::Chunked);
        for (frames, releases) in repeats {
            body.keep();
            for _ in 0..frames {
                if let Frame::Data(data) = next(&mut body).unwrap() && releases {
                    body.release(data.len()).unwrap();
                }
            }
            prop_assume!(body.take_back().is_some());
        }
        let mut received = Vec::new();
        let trailers = loop {
            match next(&mut body).unwrap() {
                Frame::Data(data) => {
                    received.extend_from_slice(&data);
                    body.release(data.len()).unwrap();
                }
                Frame::Trailers(trailers) => break Some(trailers),
                Frame::End => break None,
            }
        };
        prop_assert!(trailers.is_some() && matches!(next(&mut body), Ok(Frame::End)));
        prop_assert!(received == whole, "{} of {} bytes", received.len(), whole.len());
        prop_assert_eq!(source.released, whole.len());
    }
}

#[test]
fn long_beginning_is_not_kept() {
    let mut source = source(vec![vec![0; MAX_KEPT], vec![0]]);
    let mut body = RequestBody::new(&mut source, BodyFraming::Chunked);
    body.keep();
    next(&mut body).unwrap();
    assert_eq!(body.take_back(), Some(MAX_KEPT as u64));
    body.keep();
    (0..2).for_each(|_| _ = next(&mut body).unwrap());
    assert_eq!(body.take_back(), None);
}

#[test]
fn body_of_another_length_than_its_head_is_malformed() {
    for (length, pieces) in [(3, vec![vec![0; 2]]), (3, vec![vec![0; 2], vec![0; 2]]), (1, vec![])] {
        let mut source = source(pieces.clone());
        let mut body = RequestBody::new(&mut source, BodyFraming::Length(length));
        let fault = (0..3).find_map(|_| next(&mut body).err()).unwrap();
        assert_eq!(BodyFault::within(&fault), Some(BodyFault::new(Malformed::ContentLength)), "{pieces:?}");
    }
}
