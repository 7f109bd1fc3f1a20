//! Reads the state of a server and its cluster.

use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use serde::Deserialize;

use super::{Client, Error, call::Call};

/// The part of a server's state that the server tells with any token, or with none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The address of the leader; `None` during an election.
    pub leader: Option<String>,
    /// Time of the server's clock, to the second, if the answer has it.
    pub time: Option<Timestamp>,
}

impl Client {
    /// Returns the leader and the time of the server's clock.
    pub async fn status(&self) -> Result<Status, Error> {
        let call = Call::get("status_leader", "/v1/status/leader".to_owned());
        let answer = self.send(call).await?;
        let leader: String = answer.json()?;
        let time = answer
            .date
            .as_ref()
            .and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        Ok(Status {
            leader: (!leader.is_empty()).then_some(leader),
            time,
        })
    }

    /// Returns the version of the server or agent that is asked. The token needs `agent:read`.
    pub async fn version(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Agent {
            config: AgentConfig,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct AgentConfig {
            version: String,
        }
        let call = Call::get("agent_self", "/v1/agent/self".to_owned());
        let agent: Agent = self.send(call).await?.json()?;
        Ok(agent.config.version)
    }
}
