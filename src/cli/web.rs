//! The flags of the web page.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use std::net::SocketAddr;

use clap::{Args, CommandFactory as _, ValueEnum, error::ErrorKind};
use consul_semaphore_api::scope::Scope;
use consul_semaphore_operator::web;

use super::Cli;

/// The web page.
#[derive(Args, Debug)]
#[command(next_help_heading = "Web page")]
pub(crate) struct WebFlags {
    /// Where the web page is served, such as [::]:8081 [default: nowhere]
    #[arg(long, env, value_name = "IP:PORT")]
    pub(crate) web_address: Option<SocketAddr>,

    /// Who may see the page
    #[arg(long, env, value_enum, value_name = "WHO", default_value_t)]
    pub(crate) web_auth: WebAuth,
}

/// Who may see the page.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum WebAuth {
    /// Users who log in with a Kubernetes token, for the ConsulSemaphores that they may list
    #[default]
    Kubernetes,
    /// Everybody who can reach the page, so the address must be a loopback address
    None,
}

impl WebFlags {
    /// The settings of the page. Without a login only clients that can reach the loopback of this machine, or of this
    /// pod, may see it.
    pub(crate) fn settings(&self, scope: &Scope) -> Result<Option<web::PageSettings>, clap::Error> {
        let Some(address) = self.web_address else {
            return Ok(None);
        };
        let access = match self.web_auth {
            WebAuth::Kubernetes => web::PageAccess::Kubernetes,
            WebAuth::None => web::PageAccess::Open,
        };
        if access == web::PageAccess::Open && !address.ip().is_loopback() {
            let problem = format!(
                "--web-auth=none shows all semaphores to everybody who reaches the page, so it needs a loopback \
                 address: set --web-address=127.0.0.1:{}, or leave --web-auth out",
                address.port()
            );
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, problem));
        }
        let scope = scope.clone();
        Ok(Some(web::PageSettings {
            address,
            access,
            scope,
        }))
    }
}
