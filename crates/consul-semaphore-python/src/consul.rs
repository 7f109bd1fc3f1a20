//! A client of Consul.

use std::collections::HashMap;

use consul_semaphore::consul::{Client, Config};
use pyo3::prelude::*;

use crate::{
    error::InvalidSemaphoreError,
    process::{OfProcess, Process},
};

/// A client of Consul. Semaphores share its connections.
#[pyclass(frozen)]
pub(crate) struct Consul(OfProcess<Client>);

#[pymethods]
impl Consul {
    /// Makes a client from `settings`, which has the values of Consul's environment variables.
    #[new]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "Python's values are converted"
    )]
    fn new(settings: HashMap<String, String>, datacenter: Option<String>) -> PyResult<Self> {
        let _runtime = Process::here()?.enter();
        let config = Config::from_lookup(|name| settings.get(name).cloned());
        let client = config.and_then(|config| {
            Client::new(Config {
                datacenter,
                ..config
            })
        });
        match client {
            Ok(client) => Ok(Self(OfProcess::new(client))),
            Err(error) => Err(InvalidSemaphoreError::new_err(error.to_string())),
        }
    }
}

impl Consul {
    pub(crate) fn client(&self) -> PyResult<Client> {
        self.0.get().cloned()
    }
}
