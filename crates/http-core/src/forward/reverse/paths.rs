//! Paths of a server as paths of a client.

/// Relation of the paths of a server and of its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::forward) enum PathMap {
    /// Both see the same paths, or the rewrite cannot be reversed.
    Same,
    /// One path, for the client and for the server.
    Exact {
        /// Path of the client.
        client: Box<[u8]>,
        /// Path of the server.
        server: Box<[u8]>,
    },
    /// All paths below a prefix. Prefixes have no slash at their end, so an empty one is the root.
    Below {
        /// Prefix of the client's paths.
        client: Box<[u8]>,
        /// Prefix of the server's paths.
        server: Box<[u8]>,
    },
}

/// A server's path, as its client sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientPath {
    /// The client has this path instead.
    Other(Vec<u8>),
    /// The path is the same.
    Same(Vec<u8>),
    /// No path of the client leads to this path of the server.
    Unreachable,
}

impl PathMap {
    /// Returns the map of a rewrite that replaces one prefix by another.
    pub(in crate::forward) fn below(client: &[u8], server: &[u8]) -> PathMap {
        let trimmed = |path: &[u8]| path.strip_suffix(b"/").unwrap_or(path).into();
        PathMap::Below { client: trimmed(client), server: trimmed(server) }
    }

    /// The client's path for a path of the server, perhaps with a query or a fragment.
    ///
    /// A path that is already one of the client's stays: some applications know their outer prefix.
    /// If a path has both prefixes, the longer one counts.
    pub(super) fn client_path(&self, path: &[u8]) -> ClientPath {
        let end = path.iter().position(|byte| b"?#".contains(byte)).unwrap_or(path.len());
        let (path, rest) = path.split_at(end);
        // `http://host?query` has the path `/`.
        let path = if path.is_empty() { b"/" } else { path };
        let whole = |path: &[u8]| [if path.is_empty() { b"/" } else { path }, rest].concat();
        let same = || ClientPath::Same(whole(path));
        match self {
            PathMap::Same => same(),
            PathMap::Exact { client, server } => match path {
                path if *path == **server => ClientPath::Other(whole(client)),
                path if *path == **client => same(),
                _ => ClientPath::Unreachable,
            },
            PathMap::Below { client, server } => {
                let is_of_client = below(client, path).is_some();
                match below(server, path) {
                    Some(below) if !is_of_client || server.len() >= client.len() => {
                        ClientPath::Other(whole(&[client, below].concat()))
                    }
                    _ if is_of_client => same(),
                    _ => ClientPath::Unreachable,
                }
            }
        }
    }

    /// The client's path for a cookie of the server. `None`: the path of the cookie stays.
    pub(super) fn cookie_path(&self, path: &[u8]) -> Option<Vec<u8>> {
        match (self, path) {
            // A cookie with the path `/v1/` would not be for `/v1`.
            (PathMap::Below { client, server }, b"/") if server.is_empty() && !client.is_empty() => {
                Some(client.to_vec())
            }
            (PathMap::Below { .. }, [b'/', ..]) => match self.client_path(path) {
                ClientPath::Other(path) => Some(path),
                ClientPath::Same(_) | ClientPath::Unreachable => None,
            },
            _ => None,
        }
    }
}

/// Rest of a path after a prefix of whole segments; `None`: the path is not below the prefix.
fn below<'a>(prefix: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
