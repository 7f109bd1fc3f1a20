//! Random faults against real servers under load, and a judge that shares no code with the operator.
//!
//! | module | what it is for |
//! |---|---|
//! | [`record`] | the records of the timeline |
//! | [`timeline`] | the file, and the present that follows from it |
//! | `door`, `weather`, `versions`, `certificates` | the doors through which all traffic goes, and what they do to it |
//! | `consul_record`, `facts` | every revision of every `.lock`, and who waits |
//! | `observer` | the API server's watches, and Consul's as a second source |
//! | `world` | the servers, who may do what in Consul, and the operators |
//! | `load` | Jobs, and other programs that want slots |
//! | `kinds`, `plan` | the kinds of faults, and which come |
//! | [`judge`] | the safety sentences as checks over a timeline |
//! | `planted` | shows first that violations of a millisecond are caught |
//! | `report`, `picture` | the report and the picture of it |
//! | [`campaign`] | all of it, in order |
//! | [`interop`] | no faults, but two clusters and programs of others on one prefix, seen and judged alike |
//! | [`soak`] | no faults, but a steady load for long: what the operator takes must stay as it is |
//!
//! The judge reads nothing but the timeline, so a campaign can be judged again.

pub mod campaign;

mod certificates;
mod consul_record;
mod door;
mod facts;
pub mod interop;
pub mod judge;
mod kinds;
mod load;
mod observer;
mod picture;
mod plan;
mod planted;
pub mod record;
mod report;
pub mod soak;
pub mod timeline;
mod versions;
mod weather;
mod world;
