//! Strict HTTP/1 for proxies: parsing, body framing, routing and rewriting of heads, without a body
//! in memory. Pure: bytes in, decisions out.
//!
//! If a proxy and a server interpret a request differently, a client can smuggle a second request
//! past the proxy. So convey refuses each ambiguous message as [`Malformed`], and does not forward
//! it. The rules are those of RFC 9110 and RFC 9112. Where the RFCs leave a choice, convey refuses
//! the message.
//!
//! ```
//! use bytes::BytesMut;
//! use convey_http_core::{BodyFraming, HeadLimits, HeadReader};
//!
//! let mut received = BytesMut::from("POST /v1/items HTTP/1.1\r\nHost: api.example\r\nContent-Length: 2\r\n\r\nhi");
//! let head = HeadReader::default().request(&mut received, &HeadLimits::default()).unwrap().unwrap();
//! assert_eq!(head.path(), b"/v1/items");
//! assert_eq!(head.framing(), BodyFraming::Length(2));
//! assert_eq!(&received[..], b"hi", "the body stays where it is");
//! ```
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod accept_encoding;
mod body;
mod compression;
mod cors;
mod exchange;
mod facts;
mod field_syntax;
mod forward;
mod head;
mod malformed;
mod method;
mod path_glob;
mod phase;
mod redirect;
mod request_field;
mod response_decoder;
mod retry_budget;
mod retry_rules;
mod routes;
mod template;
mod text_pattern;
mod trace_parent;

pub use accept_encoding::{AcceptedEncodings, ContentCoding};
pub use body::{
    BodyDecoder, BodyEncoder, BodyFraming, BodyPiece, BodyProgress, BodyReader, Frame, MAX_CHUNK_EXTENSION,
    MAX_TRAILERS, Trailers,
};
pub use compression::{CompressionOffer, CompressionOutcome, CompressionRules, MediaPattern};
pub use cors::{CorsRules, OriginPattern};
pub use exchange::{Exchange, ExchangeEnd, ExchangeState, HeadVerdict, MAX_INTERIM_RESPONSES, ServerFault};
pub use facts::{RequestFacts, TlsFacts};
pub use field_syntax::{is_name as is_token, is_same_for_cgi};
pub use forward::{
    ClientAddress, ClientConnection, ClientIdentity, FieldFault, FieldRules, FieldTrust, ForwardedFields,
    GroupFault, NamedClient, OutgoingRequest, OutgoingResponse, PathRewrite, RequestChanges,
    ResponseCondition, ResponseReversal, ReverseRewrite, ReversedFields, rewritten_path,
};
pub use head::{
    Field, HeadLimits, HeadReader, RequestHead, ResponseBuilder, ResponseHead, StreamRequest, StreamResponse,
    StreamTunnel, reason_phrase,
};
pub use malformed::Malformed;
pub use method::HttpMethod;
pub use path_glob::{InvalidGlob, PathGlob};
pub use phase::ExchangePhase;
pub use redirect::{Redirect, RedirectPath, UrlScheme};
pub use request_field::{RequestField, cookies};
pub use response_decoder::ResponseDecoder;
pub use retry_budget::RetryBudget;
pub use retry_rules::{MAX_KEPT_BODY, RetryCause, RetryRules};
pub use routes::{
    ExactPath, HostPattern, HostTable, NamedCondition, PathPattern, PathPrefix, PathView, PatternFault,
    RouteConditions, RouteEntry, RouteTable, ValueCondition,
};
pub use template::{Template, UnknownVariable, Variable, Variables};
pub use text_pattern::{TextPattern, TextPatternFault};
pub use trace_parent::TraceParent;
