//! A client for Consul's HTTP API: keys and values, sessions, transactions, blocking queries.
//!
//! It knows nothing about Kubernetes or semaphores: the meaning of the keys is up to its caller.
//!
//! | file | subject |
//! |---|---|
//! | `config` | where Consul is and who asks: `CONSUL_*` variables, addresses, TLS, token |
//! | `model` | plain data without IO: entries, listings, session ids, transaction operations |
//! | `exposure` | whether others on the way to Consul can read tokens |
//! | `error` | what can go wrong, and how it is read from Consul's answers |
//! | `call` | a request and its answer |
//! | `elements`, `listing` | listings, decoded while they are read |
//! | `budget` | how much of the answers is kept, over all prefixes |
//! | [`turns`] | turns that are shared fairly |
//! | `client` | how every call is made: deadline, attempts, bounded answers |
//! | `backoff` | pauses between attempts, for everything that fails |
//! | `repeat` | when a call that failed is made again |
//! | `lanes` | how many calls of each kind run at once |
//! | `datacenter` | state of each datacenter |
//! | `endpoints` | which server is asked: name resolution, failover |
//! | [`files`] | files that are read again when they change |
//! | `token`, `tls` | the token, certificates |
//! | `login` | a token that Consul gives for a login, and takes back |
//! | `kv`, `session`, `txn`, `catalog`, `status` | the calls |
//! | `watch` | blocking queries as a stream |
//! | [`clock`] | moments on a clock that never jumps |
//! | [`id`] | ids that are quick to compare and hash |
//! | [`text`] | text from others, made safe to show |
//!
//! What is repeated after a failure: reads and calls that have the same effect twice (renew, destroy, register)
//! always; a write only when it is certain that nothing was written. The timeout of [`Config`] limits everything.

mod backoff;
mod budget;
mod call;
mod catalog;
mod client;
pub mod clock;
mod config;
mod datacenter;
mod elements;
mod endpoints;
mod error;
mod exposure;
pub mod files;
pub mod id;
mod kv;
mod lanes;
mod listing;
mod login;
mod model;
mod repeat;
mod session;
mod shared_turn;
mod status;
pub mod text;
mod tls;
mod token;
pub mod turns;
mod txn;
mod watch;

pub use backoff::Backoff;
pub use budget::{Account, Budget, Reader};
pub use catalog::ExternalNode;
pub use client::{Client, Gate, Observer};
pub use config::{Address, Config, ConfigError, HttpAuth, Scope, Secret, Tls};
pub use error::{Error, LoginFailure, OpError};
pub use exposure::Exposure;
pub use kv::PutMode;
pub use login::AuthMethod;
pub use model::{Entries, Entry, Keys, Listed, Listing, Op, SessionId};
pub use session::{Behavior, NewSession, Renewed, Session};
pub use status::Status;
pub use token::{InvalidToken, TokenCell};
pub use watch::WatchOptions;
