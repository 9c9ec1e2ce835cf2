//! Bodies of any size arrive whole through any window and any split of reads.

use std::task::Waker;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Source that returns data in pieces, and then trailers.
struct Source {
    pieces: std::vec::IntoIter<Vec<u8>>,
    trailers: Option<HeaderMap>,
    released: usize,
}

impl DataSource for &mut Source {
    fn poll_data(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(self.pieces.next().map(|piece| Ok(piece.into())))
    }

    fn poll_trailers(&mut self, _: &mut Context<'_>) -> Poll<io::Result<Option<HeaderMap>>> {
        Poll::Ready(Ok(self.trailers.take()))
    }

    fn has_gone_on(&mut self, len: usize) -> io::Result<()> {
        self.released += len;
        Ok(())
    }
}

/// Sink that opens these windows in turn, and keeps the data that has arrived.
struct Sink {
    windows: std::iter::Cycle<std::vec::IntoIter<usize>>,
    arrived: Vec<u8>,
    trailers: Option<HeaderMap>,
    ends: usize,
}

impl DataSink for &mut Sink {
    fn poll_room(&mut self, _: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        match self.windows.next() {
            None | Some(0) => Poll::Pending,
            Some(room) => Poll::Ready(Ok(room.min(wanted))),
        }
    }

    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        assert_eq!(self.ends, 0, "nothing comes behind the end");
        self.arrived.extend_from_slice(&data);
        self.ends += usize::from(is_last);
        Ok(())
    }

    fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()> {
        (self.trailers, self.ends) = (Some(trailers), self.ends + 1);
        Ok(())
    }

    fn reset(&mut self, _: StreamFault) {}

    fn poll_reset(&mut self, _: &mut Context<'_>) -> Poll<io::Error> {
        Poll::Pending
    }
}

/// Relays a body in these pieces through a sink with these windows, like a transfer.
fn relay(framing: BodyFraming, pieces: Vec<Vec<u8>>, windows: Vec<usize>, has_trailers: bool) {
    let cx = &mut Context::from_waker(Waker::noop());
    let whole = pieces.concat();
    let trailers = (has_trailers && framing == BodyFraming::Chunked).then(|| {
        let status = ("grpc-status".parse().unwrap(), "0".parse().unwrap());
        HeaderMap::from_iter([status])
    });
    let mut source = Source { pieces: pieces.into_iter(), trailers: trailers.clone(), released: 0 };
    let windows = windows.into_iter().chain([1]).collect::<Vec<_>>().into_iter().cycle();
    let mut sink = Sink { windows, arrived: Vec::new(), trailers: None, ends: 0 };
    let mut body = BodyIn::new(&mut source, framing);
    let is_empty = framing == BodyFraming::Length(0);
    let mut out = BodyOut::new(&mut sink, framing, is_empty);
    loop {
        let Poll::Ready(room) = out.poll_room(cx, 64 * 1024) else { continue };
        let mut buffer = vec![0; room.unwrap()];
        let Poll::Ready(read) = body.poll_read(cx, &mut buffer) else { panic!("the source is ready") };
        let read = read.unwrap();
        let mut sent = 0;
        while sent < read {
            if let Poll::Ready(n) = out.poll_write(cx, &buffer[sent..read]) {
                sent += n.unwrap();
            }
        }
        if read == 0 {
            out.finish();
            break;
        }
    }
    assert!(is_empty || sink.ends == 1, "the body ends once");
    assert!(sink.arrived == whole, "{} of {} bytes arrived", sink.arrived.len(), whole.len());
    assert_eq!((sink.trailers, source.released), (trailers, whole.len()));
}

fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let size = prop_oneof![0..40_usize, 250..260_usize, 4_080..4_100_usize, 16_370..16_400_usize];
    vec(size.prop_map(|size| (0..size).map(|n| n as u8).collect()), 0..6)
}

fn windows() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![Just(0), 1..20_usize, 16_360..16_400_usize, Just(1 << 20)], 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn body_arrives_whole_through_any_window(
        pieces in pieces(),
        windows in windows(),
        has_trailers: bool,
        framing in 0..3,
    ) {
        let len = pieces.iter().map(Vec::len).sum::<usize>() as u64;
        let framing = match framing {
            0 => BodyFraming::Chunked,
            1 => BodyFraming::Length(len),
            _ => BodyFraming::UntilClose,
        };
        relay(framing, pieces, windows, has_trailers);
    }
}

#[test]
fn chunked_body_is_not_ended_by_a_small_window() {
    for room in 1..=32 {
        relay(BodyFraming::Chunked, vec![vec![b'x'; 500]], vec![room], true);
    }
}
