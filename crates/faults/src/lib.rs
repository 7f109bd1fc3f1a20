//! Random faults against real servers under load, and a judge that shares no code with the operator.
//!
//! | module | what it is for |
//! |---|---|
//! | [`record`] | the records of the timeline |
//! | [`timeline`] | the file, and the present that follows from it |
//! | `door`, `weather`, `versions`, `certificates` | the proxies for all traffic, and the faults they inject |
//! | `consul_record`, `facts` | every revision of every `.lock`, and the waiting contenders |
//! | `observer` | the API server's watches, and Consul's as a second source |
//! | `world` | the servers, the rights in Consul, and the operators |
//! | `load`, `workloads` | Jobs, other workloads, and other programs that want slots |
//! | `kinds`, `plan` | the kinds of faults, and the plan of a campaign |
//! | [`judge`] | the safety sentences as checks over a timeline |
//! | `planted` | proves first that violations of a millisecond are caught |
//! | `report`, `picture` | the report and its picture |
//! | [`campaign`] | a whole campaign, in order |
//! | [`interop`] | no faults, but two clusters and foreign programs on one prefix, with the same observers and judge
//! |
//! | [`soak`] | no faults, but a long steady load: the operator's use of resources must stay constant |
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
mod workloads;
mod world;
