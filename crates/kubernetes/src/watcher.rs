//! Lists and watches objects of one kind.

use std::vec::IntoIter;

use convey_model::KubernetesService;
use futures_util::Stream;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::client::{ApiClient, ApiFault, Transport, WatchLines, unreadable};
use crate::objects::{ApiStatus, Object, WatchEvent};

/// Characters that are not escaped in a query.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*');

/// Number of objects in a page of a list.
const PAGE: u32 = 100;
/// Duration of one watch, in seconds. The next watch continues where it ends.
pub(crate) const WATCH_SECONDS: u32 = 30;

/// Event of a list or a watch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ObjectEvent<K> {
    /// A list begins. Objects that are not in the list no longer exist.
    ListBegins,
    Listed(K),
    ListEnds,
    /// The API server has answered the request for a watch.
    WatchBegins,
    /// The object is new, or has changed.
    Applied(K),
    Deleted(K),
}

/// Objects of one kind in one namespace.
#[derive(Debug, Clone)]
pub(crate) struct Collection {
    /// Path of the objects, such as `/api/v1/namespaces/shop/services`.
    path: String,
    /// Query that selects the objects.
    selector: String,
}

impl Collection {
    /// EndpointSlices of a Service.
    pub(crate) fn slices(service: &KubernetesService) -> Collection {
        let selector = escaped(&format!("kubernetes.io/service-name={}", service.name));
        Collection {
            path: format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", service.namespace),
            selector: format!("labelSelector={selector}"),
        }
    }

    /// The Service itself.
    pub(crate) fn service(service: &KubernetesService) -> Collection {
        let selector = escaped(&format!("metadata.name={}", service.name));
        Collection {
            path: format!("/api/v1/namespaces/{}/services", service.namespace),
            selector: format!("fieldSelector={selector}"),
        }
    }

    fn page(&self, next: Option<&str>) -> String {
        let Collection { path, selector } = self;
        let next = next.map(|next| format!("&continue={}", escaped(next))).unwrap_or_default();
        format!("{path}?{selector}&limit={PAGE}{next}")
    }

    fn watch(&self, version: &str) -> String {
        let (Collection { path, selector }, version) = (self, escaped(version));
        format!(
            "{path}?watch=true&timeoutSeconds={WATCH_SECONDS}&{selector}&allowWatchBookmarks=true&resourceVersion={version}"
        )
    }
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, QUERY).to_string()
}

/// Lists and watches the objects. The caller must stop after the first fault.
pub(crate) fn events<T: Transport, K: Object>(
    client: ApiClient<T>,
    collection: Collection,
) -> impl Stream<Item = Result<ObjectEvent<K>, ApiFault>> {
    let watcher = Watcher { client, collection, state: State::Begins };
    futures_util::stream::unfold(watcher, async |mut watcher| Some((watcher.next().await, watcher)))
}

struct Watcher<T: Transport, K> {
    client: ApiClient<T>,
    collection: Collection,
    state: State<T::Body, K>,
}

enum State<B, K> {
    Begins,
    Lists(Page<K>),
    /// A list or a watch has ended. Contains the version at which the next watch starts.
    Listed(String),
    Watches(WatchLines<B>, String),
}

/// Remaining items of a page. If both `next` and `version` are missing, the page was not read yet.
struct Page<K> {
    items: IntoIter<K>,
    next: Option<String>,
    version: Option<String>,
}

impl<T: Transport, K: Object> Watcher<T, K> {
    async fn next(&mut self) -> Result<ObjectEvent<K>, ApiFault> {
        loop {
            match std::mem::replace(&mut self.state, State::Begins) {
                State::Begins => {
                    let items = Vec::new().into_iter();
                    self.state = State::Lists(Page { items, next: None, version: None });
                    return Ok(ObjectEvent::ListBegins);
                }
                State::Lists(mut page) => {
                    if let Some(item) = page.items.next() {
                        self.state = State::Lists(page);
                        return Ok(ObjectEvent::Listed(item));
                    }
                    if let (None, Some(version)) = (&page.next, page.version) {
                        self.state = State::Listed(version);
                        return Ok(ObjectEvent::ListEnds);
                    }
                    self.state = State::Lists(self.page(page.next.as_deref()).await?);
                }
                State::Listed(version) => {
                    let lines = self.client.watch(&self.collection.watch(&version)).await?;
                    self.state = State::Watches(lines, version);
                    return Ok(ObjectEvent::WatchBegins);
                }
                State::Watches(mut lines, version) => {
                    let Some(line) = lines.next().await? else {
                        self.state = State::Listed(version);
                        continue;
                    };
                    let (version, event) = read_line(&line, version)?;
                    self.state = State::Watches(lines, version);
                    if let Some(event) = event {
                        return Ok(event);
                    }
                }
            }
        }
    }

    async fn page(&mut self, next: Option<&str>) -> Result<Page<K>, ApiFault> {
        let list = self.client.list(&self.collection.page(next)).await?;
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (next, version) = (some(list.metadata.r#continue), some(list.metadata.resource_version));
        if next.is_none() && version.is_none() {
            return Err(no_version());
        }
        Ok(Page { items: list.items.into_iter(), next, version })
    }
}

/// Parses a line of a watch. `version` is the resource version before the line. Returns the
/// resource version after the line, and the event of the line, if it has one.
fn read_line<K: Object>(line: &[u8], version: String) -> Result<(String, Option<ObjectEvent<K>>), ApiFault> {
    let has_text = !line.trim_ascii().is_empty();
    match serde_json::from_slice(line) {
        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
            Ok((version_of(&object)?, Some(ObjectEvent::Applied(object))))
        }
        Ok(WatchEvent::Deleted(object)) => Ok((version_of(&object)?, Some(ObjectEvent::Deleted(object)))),
        Ok(WatchEvent::Bookmark(bookmark)) => {
            let next = bookmark.metadata.resource_version.filter(|next| !next.is_empty());
            Ok((next.unwrap_or(version), None))
        }
        Ok(WatchEvent::Error(status)) => Err(ApiFault::Refused(status)),
        // The last line may be truncated; then it is ignored.
        Err(error) if error.is_eof() && !(line.ends_with(b"\n") && has_text) => Ok((version, None)),
        Err(error) => Err(match serde_json::from_slice::<ApiStatus>(line) {
            Ok(status) => ApiFault::Refused(status),
            Err(_) => ApiFault::Broken(unreadable(&error)),
        }),
    }
}

fn version_of(object: &impl Object) -> Result<String, ApiFault> {
    let version = object.metadata().resource_version.as_ref().filter(|version| !version.is_empty());
    version.cloned().ok_or_else(no_version)
}

fn no_version() -> ApiFault {
    ApiFault::Broken("the API server has sent no metadata.resourceVersion".to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use convey_model::{KubernetesCluster, ServicePort};
    use futures_util::StreamExt;
    use http::Response;
    use http_body_util::Full;

    use super::*;
    use crate::objects::ServiceObject;

    /// Transport with scripted answers, which records the targets of the requests.
    #[derive(Clone, Default)]
    struct Script {
        answers: Arc<Mutex<VecDeque<String>>>,
        targets: Arc<Mutex<Vec<String>>>,
    }

    impl Transport for Script {
        type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

        async fn get(&mut self, target: &str) -> Result<Response<Self::Body>, String> {
            self.targets.lock().unwrap().push(target.to_owned());
            let answer = self.answers.lock().unwrap().pop_front().ok_or("the connection is closed")?;
            Ok(Response::new(http_body_util::BodyExt::boxed_unsync(Full::from(answer))))
        }
    }

    /// Returns the events from these answers in short form, and the requests that were sent.
    async fn events_of(answers: &[&str]) -> (Vec<String>, Vec<String>) {
        let script = Script::default();
        script.answers.lock().unwrap().extend(answers.iter().map(|answer| (*answer).to_owned()));
        let collection = Collection::service(&service());
        let mut events =
            std::pin::pin!(events::<_, ServiceObject>(ApiClient::new(script.clone()), collection));
        let mut seen = Vec::new();
        loop {
            let event = events.next().await.unwrap();
            if matches!(event, Ok(ObjectEvent::WatchBegins)) {
                continue;
            }
            let name = |object: &ServiceObject| object.metadata.name.clone().unwrap_or_default();
            seen.push(match &event {
                Ok(ObjectEvent::ListBegins) => "(".to_owned(),
                Ok(ObjectEvent::Listed(object)) => name(object),
                Ok(ObjectEvent::ListEnds) => ")".to_owned(),
                Ok(ObjectEvent::WatchBegins) => unreachable!(),
                Ok(ObjectEvent::Applied(object)) => format!("+{}", name(object)),
                Ok(ObjectEvent::Deleted(object)) => format!("-{}", name(object)),
                Err(ApiFault::Refused(status)) => format!("{} {}", status.reason, status.code),
                Err(ApiFault::Broken(why)) => why.clone(),
            });
            if event.is_err() {
                let targets = script.targets.lock().unwrap().clone();
                return (seen, targets);
            }
        }
    }

    fn service() -> KubernetesService {
        KubernetesService {
            namespace: "shop".into(),
            name: "web".into(),
            port: ServicePort::Number(80),
            protocol: None,
            cluster: KubernetesCluster::default(),
        }
    }

    fn object(name: &str, version: u32) -> String {
        format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#)
    }

    fn line(kind: &str, object: &str) -> String {
        format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
    }

    const EMPTY: &str = r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#;

    #[tokio::test(start_paused = true)]
    async fn list_is_read_page_by_page_before_its_watch() {
        let first = format!(r#"{{"metadata":{{"continue":"a/b c"}},"items":[{}]}}"#, object("web-1", 3));
        let second = format!(
            r#"{{"metadata":{{"resourceVersion":"7","continue":""}},"items":[{}]}}"#,
            object("web-2", 4)
        );
        let changes = [
            line("ADDED", &object("web-3", 8)),
            "\n".to_owned(),
            line("MODIFIED", &object("web-1", 9)),
            line("DELETED", &object("web-2", 10)),
        ];
        let bookmark = line("BOOKMARK", r#"{"metadata":{"resourceVersion":"12"}}"#);
        let nowhere = line("BOOKMARK", r#"{"metadata":{"resourceVersion":""}}"#);
        let nothing = line("BOOKMARK", r#"{"metadata":{}}"#);
        let gone = line("ERROR", r#"{"reason":"Expired","code":410}"#);
        let answers = [first, second, changes.concat(), bookmark, nowhere + &nothing, gone];
        let (seen, targets) = events_of(&answers.each_ref().map(|answer| answer.as_str())).await;
        assert_eq!(seen, ["(", "web-1", "web-2", ")", "+web-3", "+web-1", "-web-2", "Expired 410"]);
        let path = "/api/v1/namespaces/shop/services?";
        let list = format!("{path}fieldSelector=metadata.name%3Dweb&limit=100");
        let watch = |version: u32| {
            format!(
                "{path}watch=true&timeoutSeconds=30&fieldSelector=metadata.name%3Dweb\
                 &allowWatchBookmarks=true&resourceVersion={version}"
            )
        };
        let next = format!("{list}&continue=a%2Fb%20c");
        assert_eq!(targets, [list, next, watch(7), watch(10), watch(12), watch(12)]);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_no_list_or_watch_are_faults() {
        let last = async |answers: &[&str]| events_of(answers).await.0.pop().unwrap();
        let unreadable = "invalid response from the API server: ";
        assert!(last(&["<html>"]).await.starts_with(unreadable));
        assert!(last(&[r#"{"metadata":{}}"#]).await.starts_with(unreadable));
        let version = "the API server has sent no metadata.resourceVersion";
        assert_eq!(last(&[r#"{"metadata":{},"items":[]}"#]).await, version);
        assert_eq!(last(&[EMPTY, &line("ADDED", r#"{"metadata":{}}"#)]).await, version);
        assert!(last(&[EMPTY, "<html>\n"]).await.starts_with(unreadable));
        assert_eq!(
            last(&[EMPTY, &line("NEWS", "{}")]).await,
            " 0",
            "what is no event is no error of the API"
        );
        assert_eq!(last(&[EMPTY, r#"{"reason":"Forbidden","code":403}"#]).await, "Forbidden 403");
        let half = r#"{"type":"ADDED","object":{"#;
        assert_eq!(last(&[EMPTY, half]).await, "the connection is closed", "the next watch");
        let ended = last(&[EMPTY, &format!("{half}\n")]).await;
        assert!(ended.starts_with(unreadable), "{ended}");
    }

    #[tokio::test(start_paused = true)]
    async fn list_has_at_most_32_pages() {
        let page = r#"{"metadata":{"continue":"more"},"items":[]}"#;
        let (seen, targets) = events_of(&[page; 40]).await;
        assert_eq!(seen.last().unwrap(), "the list of the API server has more than 32 pages");
        assert_eq!(targets.len(), 32);
    }
}
