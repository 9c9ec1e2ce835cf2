//! Server ids in the cookies of session affinity. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use convey_http_core::{RequestHead, cookies};
use convey_model::{AffinityConfig, HashKey, server_text};
use data_encoding::BASE64URL_NOPAD;
use ring::hmac;

use crate::Server;

/// Number of bytes of a keyed hash that make an id. Nobody guesses 96 bits.
const ID_BYTES: usize = 12;

/// Separates these hashes from others of the same key.
const CONTEXT: &[u8] = b"convey affinity ";

/// Affinity cookies of a pool: the ids of its servers.
///
/// An id is a keyed hash of the server's address and port, or of its unix socket (with
/// `hash_key = "name"`, of its name).
/// It is the same on every node with the same key, and survives reloads, restarts, and other names
/// of the server and its backend.
pub(crate) struct AffinityTable {
    config: Arc<AffinityConfig>,
    /// Id of each server, in the order of the pool.
    ids: Vec<Box<str>>,
    servers: HashMap<Box<str>, usize>,
}

impl AffinityTable {
    /// Computes the ids of `servers`. `before` is the previous table of the backend, which is
    /// returned again if a new one would be equal.
    pub(crate) fn new(
        config: &Arc<AffinityConfig>,
        by: HashKey,
        servers: &[Arc<Server>],
        before: Option<&Arc<AffinityTable>>,
    ) -> Arc<AffinityTable> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, config.key.bytes());
        let id = |server: &Arc<Server>| {
            let identity = match by {
                HashKey::Name => server.config.name.clone(),
                HashKey::AddrPort | HashKey::Addr => server_text(server.config.addr),
            };
            let tag = hmac::sign(&key, &[CONTEXT, identity.as_bytes()].concat());
            BASE64URL_NOPAD.encode(&tag.as_ref()[..ID_BYTES]).into_boxed_str()
        };
        let ids: Vec<Box<str>> = servers.iter().map(id).collect();
        if let Some(before) = before.filter(|before| before.config == *config && before.ids == ids) {
            return Arc::clone(before);
        }
        let servers = ids.iter().enumerate().map(|(index, id)| (id.clone(), index)).collect();
        Arc::new(AffinityTable { config: Arc::clone(config), ids, servers })
    }

    /// Indexes of the servers that the cookies of a request name. A request can have several cookies
    /// with the name, for example of another domain or path.
    pub(crate) fn servers_of(&self, request: &RequestHead) -> impl Iterator<Item = usize> {
        let ids = cookies(request, &self.config.cookie).filter_map(|id| std::str::from_utf8(id).ok());
        ids.filter_map(|id| self.servers.get(id).copied())
    }

    /// Value of `Set-Cookie` that names the server with this index.
    pub(crate) fn cookie(&self, index: usize, is_https: bool) -> Option<String> {
        let id = self.ids.get(index)?;
        let config = &self.config;
        let mut cookie = format!("{}={id}; Path={}", config.cookie, config.path);
        if let Some(domain) = &config.domain {
            cookie += &format!("; Domain={domain}");
        }
        if let Some(max_age) = config.max_age {
            cookie += &format!("; Max-Age={max_age}");
        }
        if config.http_only {
            cookie += "; HttpOnly";
        }
        if config.secure.unwrap_or(is_https) || config.needs_secure() {
            cookie += "; Secure";
        }
        cookie += &format!("; SameSite={}", config.same_site.attribute());
        Some(cookie)
    }
}

#[cfg(test)]
mod tests {
    use convey_model::{AdminState, AffinityKey, BackendConfig, SameSite, ServerConfig};

    use super::*;
    use crate::{Health, Pool, fixture};

    fn affinity(key: u8) -> AffinityConfig {
        AffinityConfig { key: AffinityKey::new(&[key; 32]), ..AffinityConfig::new("server") }
    }

    fn pool_of(backend: &str, servers: Vec<ServerConfig>, affinity: AffinityConfig) -> Arc<Pool> {
        let affinity = Some(Arc::new(affinity));
        fixture::pool_of(BackendConfig { affinity, ..fixture::backend(backend, servers) })
    }

    fn two_servers() -> Vec<ServerConfig> {
        vec![fixture::server("a", "10.0.0.2:80"), fixture::server("b", "10.0.0.3:80")]
    }

    fn without_cookie() -> RequestHead {
        fixture::head("shop.example", "/")
    }

    /// A request with the cookie that the server with this index gives out.
    fn returning(pool: &Pool, index: usize) -> RequestHead {
        let cookie = pool.affinity_cookie(index, false).unwrap();
        let pair = cookie.split(';').next().unwrap();
        let text = format!("GET / HTTP/1.1\r\nHost: shop.example\r\nCookie: lang=en; {pair}\r\n\r\n");
        RequestHead::of_text(&text).unwrap()
    }

    #[test]
    fn cookie_names_its_server() {
        let pool = pool_of("shop", two_servers(), affinity(7));
        for index in [0, 1] {
            let head = returning(&pool, index);
            assert_eq!(pool.named_in(&head), Some(index));
        }
        assert_eq!(pool.named_in(&without_cookie()), None);
    }

    #[test]
    fn first_cookie_that_names_a_serving_server_counts() {
        let pool = pool_of("shop", two_servers(), affinity(7));
        let values: Vec<String> = [0, 1]
            .iter()
            .map(|index| pool.affinity_cookie(*index, false).unwrap())
            .map(|cookie| cookie.split(';').next().unwrap().to_owned())
            .collect();
        let mut servers = pool.servers.clone();
        let health = fixture::down("refused", std::time::Duration::ZERO);
        let Server { config, admin, live, .. } = &*servers[0];
        servers[0] = Arc::new(Server { config: config.clone(), admin: *admin, health, live: live.clone() });
        let without_a = fixture::with_servers(&pool, servers);
        let cases = [
            (format!("server=bogus; {}", values[1]), Some(1), Some(1)),
            (format!("server=; server; {}", values[1]), Some(1), Some(1)),
            (format!("server=bogus\r\nCookie: {}", values[1]), Some(1), Some(1)),
            (format!("{}; {}", values[0], values[1]), Some(0), Some(1)),
            ("server=bogus; server=other".to_owned(), None, None),
        ];
        for (cookies, named, named_without_a) in cases {
            let text = format!("GET / HTTP/1.1\r\nHost: shop.example\r\nCookie: {cookies}\r\n\r\n");
            let head = RequestHead::of_text(&text).unwrap();
            assert_eq!(pool.named_in(&head), named, "{cookies}");
            assert_eq!(without_a.named_in(&head), named_without_a, "{cookies}, a is down");
        }
    }

    #[test]
    fn ids_hold_for_other_names_orders_and_nodes_with_the_key() {
        let pool = pool_of("shop", two_servers(), affinity(7));
        let head = returning(&pool, 1);
        let mut others = two_servers();
        others.reverse();
        others[0].name = "renamed".into();
        let other = pool_of("other", others, affinity(7));
        assert_eq!(other.named_in(&head), Some(0));
        let stranger = pool_of("shop", two_servers(), affinity(8));
        assert_eq!(stranger.named_in(&head), None);
    }

    #[test]
    fn ids_by_name_hold_for_other_addresses() {
        let by_name = |servers| {
            let affinity = Some(Arc::new(affinity(7)));
            let backend = BackendConfig { affinity, ..fixture::backend("shop", servers) };
            fixture::pool_of(BackendConfig { hash_key: HashKey::Name, ..backend })
        };
        let head = returning(&by_name(two_servers()), 1);
        let moved = by_name(vec![fixture::server("b", "10.0.0.99:80"), fixture::server("a", "10.0.0.3:80")]);
        assert_eq!(moved.named_in(&head), Some(0));
    }

    #[test]
    fn draining_server_keeps_its_clients_and_a_lost_one_does_not() {
        let pool = pool_of("shop", two_servers(), affinity(7));
        let head = returning(&pool, 0);
        let up = fixture::up();
        let down = || fixture::down("refused", std::time::Duration::ZERO);
        let cases: [(AdminState, Health, u16, Option<usize>); 5] = [
            (AdminState::Ready, up.clone(), 1, Some(0)),
            (AdminState::Drain, up.clone(), 1, Some(0)),
            (AdminState::Ready, up.clone(), 0, Some(0)),
            (AdminState::Drain, down(), 1, None),
            (AdminState::Maint, up, 1, None),
        ];
        for (admin, health, weight, named) in cases {
            let mut servers = pool.servers.clone();
            let mut config = servers[0].config.clone();
            config.settings.weight = weight;
            let case = format!("{admin:?}, up {}, weight {weight}", health.up);
            servers[0] = Arc::new(Server { config, admin, health, live: servers[0].live.clone() });
            let changed = fixture::with_servers(&pool, servers);
            assert_eq!(changed.named_in(&head), named, "{case}");
        }
    }

    #[test]
    fn attributes_follow_the_configuration_and_the_scheme() {
        let cookie = |config: AffinityConfig, is_https| {
            let pool = pool_of("shop", two_servers(), config);
            let cookie = pool.affinity_cookie(0, is_https).unwrap();
            cookie.split_once("; ").unwrap().1.to_owned()
        };
        assert_eq!(cookie(affinity(7), false), "Path=/; HttpOnly; SameSite=Lax");
        assert_eq!(cookie(affinity(7), true), "Path=/; HttpOnly; Secure; SameSite=Lax");
        for name in ["__Host-server", "__Secure-server", "__host-server"] {
            let prefixed = AffinityConfig { cookie: name.into(), ..affinity(7) };
            assert_eq!(cookie(prefixed, false), "Path=/; HttpOnly; Secure; SameSite=Lax", "{name}");
        }
        let all = AffinityConfig {
            path: "/shop".into(),
            domain: Some("example.com".into()),
            max_age: Some(60),
            same_site: SameSite::None,
            secure: Some(true),
            http_only: false,
            ..affinity(7)
        };
        let text = "Path=/shop; Domain=example.com; Max-Age=60; Secure; SameSite=None";
        assert_eq!(cookie(all, false), text);
    }

    #[test]
    fn table_is_kept_while_no_server_changes() {
        let pool = pool_of("shop", two_servers(), affinity(7));
        let same = fixture::with_servers(&pool, pool.servers.clone());
        let table = |pool: &Pool| Arc::clone(pool.affinity.as_ref().unwrap());
        assert!(Arc::ptr_eq(&table(&pool), &table(&same)));
        let fewer = fixture::with_servers(&pool, pool.servers[1..].to_vec());
        assert_eq!(fewer.named_in(&returning(&pool, 0)), None);
        assert_eq!(fewer.named_in(&returning(&pool, 1)), Some(0));
    }
}
