//! Requests of `requests.txt`, and the answers of the peers in the same form.

/// Names of the peers in the file.
pub(super) const PEERS: [&str; 3] = ["nginx", "haproxy", "convey"];

/// Headers of a response that each answer shows.
const SHOWN: [&str; 8] = [
    "location",
    "cache-control",
    "retry-after",
    "vary",
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-max-age",
];

/// One request, and the answer of each peer.
#[derive(Debug, Default)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) request: Vec<u8>,
    pub(super) is_from_office: bool,
    /// Headers of the request that the answer shows as the server received them.
    fields: Vec<String>,
    /// Headers of the response that the answer shows besides [`SHOWN`].
    shows: Vec<String>,
    /// In the order of [`PEERS`].
    pub(super) expected: [String; 3],
    /// Why the answers differ.
    pub(super) reason: Option<String>,
}

impl Case {
    /// Answer in the form of the file, from the head of a response. `None` is a response without a
    /// head.
    pub(super) fn answer(&self, head: Option<&str>) -> String {
        let Some(head) = head else { return "none -".to_owned() };
        let status = head.split(' ').nth(1).unwrap_or_default();
        let headers: Vec<(String, &str)> = head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .collect();
        let value = |name: &str| headers.iter().find(|(found, _)| found == name).map(|(_, value)| *value);
        let mut answer = format!("{status} {}", value("x-seen").unwrap_or("-"));
        for field in &self.fields {
            let received = headers.iter().filter(|(name, _)| name == "x-seen-field");
            for (name, value) in received.filter_map(|(_, field)| field.split_once(':')) {
                if name.eq_ignore_ascii_case(field) {
                    answer += &format!(" | > {field}: {}", value.trim());
                }
            }
        }
        for name in SHOWN.into_iter().chain(self.shows.iter().map(String::as_str)) {
            // Caches keep no reply that a peer makes without a rule, with or without this header.
            let is_default =
                |value: &&str| name == "cache-control" && matches!(*value, "no-store" | "no-cache");
            if let Some(value) = value(name).filter(|value| !is_default(value)) {
                answer += &format!(" | {name}: {value}");
            }
        }
        answer
    }
}

/// Cases of a file.
pub(super) fn parse(file: &str) -> Vec<Case> {
    file.split("\n== ").skip(1).map(case).collect()
}

fn case(text: &str) -> Case {
    let (name, rest) = text.split_once('\n').unwrap();
    let mut case = Case { name: name.to_owned(), ..Case::default() };
    let mut lines = Vec::new();
    for line in rest.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(line) = line.strip_prefix('>') {
            lines.push(unescape(line.strip_prefix(' ').unwrap_or(line)));
            continue;
        }
        let (key, value) = line.split_once(": ").unwrap_or_else(|| panic!("{name}: {line}"));
        let words = || value.split(' ').map(str::to_owned).collect();
        match key {
            "from" => case.is_from_office = value == "office",
            "fields" => case.fields = words(),
            "shows" => case.shows = words(),
            "because" => case.reason = Some(value.to_owned()),
            peers => {
                for (peer, expected) in PEERS.into_iter().zip(&mut case.expected) {
                    if peers == "all" || peers.split(", ").any(|name| name == peer) {
                        expected.push_str(value);
                    }
                }
            }
        }
    }
    if !lines.iter().any(Vec::is_empty) {
        lines.extend([Vec::new(), Vec::new()]);
    }
    case.request = lines.join(&b"\r\n"[..]);
    assert!(case.expected.iter().all(|answer| !answer.is_empty()), "{name}: an answer is missing");
    case
}

/// Replaces `\n`, `\xNN` and `{C*NUMBER}`.
fn unescape(line: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), line);
    while let Some(first) = rest.chars().next() {
        let repeated = rest.strip_prefix('{').and_then(|text| text.split_once('}'));
        if let Some(text) = rest.strip_prefix("\\n") {
            bytes.push(b'\n');
            rest = text;
        } else if let Some(text) = rest.strip_prefix("\\x") {
            bytes.push(u8::from_str_radix(&text[..2], 16).unwrap());
            rest = &text[2..];
        } else if let Some((repeated, text)) = repeated {
            let (character, times) = repeated.split_once('*').unwrap();
            bytes.extend(character.repeat(times.parse().unwrap()).into_bytes());
            rest = text;
        } else {
            bytes.extend(first.to_string().into_bytes());
            rest = &rest[first.len_utf8()..];
        }
    }
    bytes
}
