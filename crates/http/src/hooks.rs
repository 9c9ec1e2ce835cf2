//! Hooks: code of an embedding application that follows a request from its decision to its end.

use std::borrow::Cow;
use std::fmt;
use std::mem;
use std::thread;
use std::time::Duration;

use convey_http_core::{ExchangePhase, Field, FieldFault, FieldRules, ResponseHead, Trailers};
use convey_proxy::Contained;

use crate::response_log::ResponseLog;

/// Code of an embedding application that follows one request. A service of the stack attaches it
/// with [`HttpRequest::follow`](crate::HttpRequest::follow). Each method does nothing by default.
///
/// All methods run on the worker that serves the request, so they must not block.
pub trait ExchangeHook: Send + Sync + 'static {
    /// Called with the head of the response, of a server, a file or a local reply, before convey
    /// sends it to the client. Not called for interim responses.
    fn on_response(&mut self, response: &mut ResponseEdit<'_>) {
        let _ = response;
    }

    /// Whether convey calls the methods for bodies, `on_request_data` to `on_response_end`. If so,
    /// bodies take longer, because the kernel can no longer move them from socket to socket.
    fn wants_bodies(&self) -> bool {
        false
    }

    /// Called with data of the request's body, as the client sent it. Not called for files and
    /// local replies.
    fn on_request_data(&mut self, data: &[u8]) {
        let _ = data;
    }

    /// Called at the end of the request's body, with its trailers.
    fn on_request_end(&mut self, trailers: Option<&Trailers>) {
        let _ = trailers;
    }

    /// Called with data of the response's body, as the server sent it: before compression, and
    /// before the client has accepted it.
    fn on_response_data(&mut self, data: &[u8]) {
        let _ = data;
    }

    /// Called at the end of the response's body, with its trailers.
    fn on_response_end(&mut self, trailers: Option<&Trailers>) {
        let _ = trailers;
    }

    /// Called last, at the end of the exchange. Not called if convey cuts the request while a layer
    /// still decides on it, or if a panic ends its connection.
    fn on_end(&mut self, end: &ExchangeSummary) {
        let _ = end;
    }
}

/// Head of a response that a hook may change.
#[derive(Debug)]
pub struct ResponseEdit<'a> {
    head: &'a ResponseHead,
    is_local: bool,
    changes: FieldRules,
}

/// How a request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeSummary {
    /// Status of the response; `None`: the client got no response.
    pub status: Option<u16>,
    /// Bytes of the request's body.
    pub bytes_rx: u64,
    /// Bytes of the response, with its head.
    pub bytes_tx: u64,
    /// Time since the head of the request was complete.
    pub took: Duration,
    /// Reason for a local reply or for an early end, as in the access log; `None`: the client got
    /// the whole response of a server or of a file.
    pub reason: Option<&'static str>,
    /// Phase that the request had reached when it got a local reply or ended early; `None` if
    /// `reason` is `None`.
    pub phase: Option<ExchangePhase>,
}

impl ResponseEdit<'_> {
    /// Status, 200 to 999, or 101.
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// Whether convey itself generates the response. A response with a file is not a local reply.
    pub fn is_local_reply(&self) -> bool {
        self.is_local
    }

    /// All fields, in order, as the server sent them.
    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.head.fields()
    }

    /// First value of the server's field with this name; `None` if there is no such field.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.head.field(name)
    }

    /// Sets a field, in place of all fields with this name.
    ///
    /// # Errors
    /// The name or the value is invalid, or convey itself sets the field.
    pub fn set_field(&mut self, name: &str, value: &str) -> Result<(), FieldFault> {
        self.change(|changes| changes.set(name, value))
    }

    /// Adds a field. Other fields with the same name stay.
    ///
    /// # Errors
    /// The name or the value is invalid, or convey itself sets the field.
    pub fn add_field(&mut self, name: &str, value: &str) -> Result<(), FieldFault> {
        self.change(|changes| changes.add(name, value))
    }

    /// Removes all fields with this name.
    ///
    /// # Errors
    /// The name is invalid, or convey itself sets the field.
    pub fn remove_field(&mut self, name: &str) -> Result<(), FieldFault> {
        self.change(|changes| changes.remove(name))
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut FieldRules) -> Result<(), FieldFault>,
    ) -> Result<(), FieldFault> {
        let mut later = FieldRules::default();
        change(&mut later)?;
        self.changes = self.changes.then(&later);
        Ok(())
    }
}

/// Hooks of one request. The one that was attached last is the first to see a response.
#[derive(Default)]
pub(crate) struct Hooks {
    hooks: Vec<Box<dyn ExchangeHook>>,
    /// Bytes of the request's body that the hooks have seen already: a retry repeats them.
    repeated: u64,
    /// What the access log needs of the response, which hooks may have changed.
    pub(crate) response_log: ResponseLog,
}

impl Hooks {
    /// No hooks yet, for a request of which the access log needs these facts.
    pub(crate) fn with_log(response_log: ResponseLog) -> Hooks {
        Hooks { response_log, ..Hooks::default() }
    }

    /// Takes the hooks that services of the stack have attached to the request.
    pub(crate) fn take_attached(&mut self, of_request: Hooks) {
        *self = Hooks { response_log: mem::take(&mut self.response_log), ..of_request };
    }

    pub(crate) fn attach(&mut self, hook: Box<dyn ExchangeHook>) {
        self.hooks.push(hook);
    }

    /// Whether a hook wants the data of bodies.
    pub(crate) fn want_bodies(&self) -> bool {
        self.hooks.iter().any(|hook| hook.wants_bodies())
    }

    /// Returns the configured changes of the fields of this response, followed by those of the
    /// hooks.
    pub(crate) fn edit<'a>(
        &mut self,
        head: &ResponseHead,
        configured: &'a FieldRules,
        is_local: bool,
    ) -> Cow<'a, FieldRules> {
        let configured = configured.of_status(head.status());
        if self.hooks.is_empty() {
            return configured;
        }
        let mut edit = ResponseEdit { head, is_local, changes: FieldRules::default() };
        self.hooks.iter_mut().rev().for_each(|hook| hook.on_response(&mut edit));
        match edit.changes.is_empty() {
            true => configured,
            false => Cow::Owned(configured.then(&edit.changes)),
        }
    }

    pub(crate) fn request_data(&mut self, data: &[u8]) {
        let repeated = self.repeated.min(data.len() as u64);
        self.repeated -= repeated;
        let new = &data[repeated as usize..];
        if !new.is_empty() {
            self.wanting().for_each(|hook| hook.on_request_data(new));
        }
    }

    /// Notes that the next `len` bytes of the request's body repeat those that the hooks have seen.
    pub(crate) fn will_repeat(&mut self, len: u64) {
        self.repeated += len;
    }

    pub(crate) fn request_end(&mut self, trailers: Option<&Trailers>) {
        self.wanting().for_each(|hook| hook.on_request_end(trailers));
    }

    pub(crate) fn response_data(&mut self, data: &[u8]) {
        self.wanting().for_each(|hook| hook.on_response_data(data));
    }

    pub(crate) fn response_end(&mut self, trailers: Option<&Trailers>) {
        self.wanting().for_each(|hook| hook.on_response_end(trailers));
    }

    /// Reports the end of the exchange. Call this or [`Hooks::end_in_drop`] once.
    pub(crate) fn end(&mut self, summary: impl FnOnce() -> ExchangeSummary) {
        if !self.hooks.is_empty() {
            let summary = summary();
            self.hooks.iter_mut().rev().for_each(|hook| hook.on_end(&summary));
        }
    }

    /// Reports the end of an exchange that is dropped. A panic of a hook goes no further. While the
    /// thread panics already, the hooks are not called: a second panic would end the process.
    pub(crate) fn end_in_drop(&mut self, summary: impl FnOnce() -> ExchangeSummary) {
        if !self.hooks.is_empty() && !thread::panicking() {
            let summary = summary();
            self.hooks.iter_mut().rev().for_each(|hook| Contained::run(|| hook.on_end(&summary)));
        }
    }

    fn wanting(&mut self) -> impl Iterator<Item = &mut Box<dyn ExchangeHook>> {
        self.hooks.iter_mut().rev().filter(|hook| hook.wants_bodies())
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").field("count", &self.hooks.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use convey_http_core::{BodyFraming, ResponseBuilder};

    use super::*;

    const SUMMARY: ExchangeSummary = ExchangeSummary {
        status: Some(204),
        bytes_rx: 3,
        bytes_tx: 0,
        took: Duration::ZERO,
        reason: None,
        phase: None,
    };

    /// Hook that writes down what it sees, and sets a field to its name.
    struct Witness {
        name: &'static str,
        seen: Arc<Mutex<Vec<String>>>,
        wants_bodies: bool,
    }

    impl Witness {
        fn note(&self, what: impl fmt::Display) {
            self.seen.lock().unwrap().push(format!("{} {what}", self.name));
        }
    }

    impl ExchangeHook for Witness {
        fn on_response(&mut self, response: &mut ResponseEdit<'_>) {
            self.note(response.status());
            response.set_field("X-Seen-By", self.name).unwrap();
        }

        fn wants_bodies(&self) -> bool {
            self.wants_bodies
        }

        fn on_request_data(&mut self, data: &[u8]) {
            self.note(String::from_utf8_lossy(data));
        }

        fn on_end(&mut self, end: &ExchangeSummary) {
            self.note(end.status.unwrap());
        }
    }

    #[test]
    fn hooks_see_a_response_from_the_innermost_to_the_outermost() {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let mut hooks = Hooks::default();
        for (name, wants_bodies) in [("outer", false), ("inner", true)] {
            hooks.attach(Box::new(Witness { name, seen: seen.clone(), wants_bodies }));
        }
        let (head, none) = (ResponseBuilder::new(200).build(BodyFraming::Length(0)), FieldRules::default());
        let edited = hooks.edit(&head, &none, false).into_owned();
        let mut expected = FieldRules::default();
        expected.set("X-Seen-By", "outer").unwrap();
        assert_eq!(edited, expected);
        hooks.request_data(b"abc");
        hooks.will_repeat(3);
        hooks.request_data(b"abcd");
        hooks.end(|| SUMMARY);
        let expected = ["inner 200", "outer 200", "inner abc", "inner d", "inner 204", "outer 204"];
        assert_eq!(*seen.lock().unwrap(), expected);
    }

    /// Hook that counts its end, and panics then.
    struct PanicsAtEnd(Arc<AtomicUsize>);

    impl ExchangeHook for PanicsAtEnd {
        fn on_end(&mut self, _: &ExchangeSummary) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("expected by a test");
        }
    }

    /// Exchange that convey cuts, with two hooks.
    struct CutExchange(Hooks);

    impl CutExchange {
        fn new(ends: &Arc<AtomicUsize>) -> CutExchange {
            let mut hooks = Hooks::default();
            (0..2).for_each(|_| hooks.attach(Box::new(PanicsAtEnd(ends.clone()))));
            CutExchange(hooks)
        }
    }

    impl Drop for CutExchange {
        fn drop(&mut self) {
            self.0.end_in_drop(|| SUMMARY);
        }
    }

    #[test]
    fn hooks_that_panic_at_a_cut_do_not_end_the_process() {
        let ends = Arc::default();
        drop([CutExchange::new(&ends), CutExchange::new(&ends)]);
        assert_eq!(ends.load(Ordering::Relaxed), 4);
        let unwound = catch_unwind(|| {
            let _cut = [CutExchange::new(&ends), CutExchange::new(&ends)];
            panic!("expected by a test");
        });
        assert!(unwound.is_err());
        assert_eq!(ends.load(Ordering::Relaxed), 4, "no hook is called during a panic");
    }
}
