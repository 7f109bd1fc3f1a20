//! Asks Consul who uses a semaphore.

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    Semaphore,
    refusal::{advice_on, runtime_ended},
};
use crate::{
    Prefix, Reading,
    usage::{SessionNames, Usage},
};
use consul_client::{self as consul, Client};

/// The number of look-ups of sessions that run at once.
const LOOKUPS_AT_ONCE: usize = 8;

impl Semaphore {
    /// Returns who holds slots, who waits and how many slots are free, for each prefix in the order in which the
    /// semaphores were named. The answer is that of one moment for each prefix, so [`Self::try_acquire`] may still get
    /// no slot where one is free.
    ///
    /// Contenders that do not write who they are, such as `consul lock`, have names only if the token may read their
    /// sessions.
    ///
    /// # Errors
    /// Consul does not answer, or refuses.
    pub async fn usage(&self) -> Result<Vec<Usage>, consul::Error> {
        let semaphores = self.0.settings.request.semaphores().iter();
        let prefixes: Vec<Prefix> = semaphores.map(|of| of.prefix.clone()).collect();
        let consul = self.0.consul.clone();
        // The code that awaits this may run in another runtime, or in none.
        let asked = self.0.runtime.spawn(async move {
            let mut all = Vec::new();
            for prefix in prefixes {
                all.push(Usage::read(&consul, prefix).await?);
            }
            Ok(all)
        });
        asked.await.unwrap_or_else(|_ended| Err(runtime_ended()))
    }

    /// Returns advice about a refusal of [`Self::usage`], or an empty text: for the Python package, whose errors say
    /// what to do.
    #[doc(hidden)]
    pub fn advice_on(&self, refusal: &consul::Error) -> String {
        advice_on(refusal, &self.0.settings)
    }
}

impl Usage {
    /// Reads the use of the semaphore at this prefix from Consul.
    ///
    /// # Errors
    /// Consul does not answer, or refuses.
    pub async fn read(consul: &Client, prefix: Prefix) -> Result<Self, consul::Error> {
        let listing = consul.list(&prefix.folder()).await?;
        let reading = Reading::found(prefix, listing);
        let mut names = SessionNames::default();
        names.learn(consul, [&reading]).await?;
        Ok(Self::of(&reading, &names))
    }
}

impl SessionNames {
    /// Looks up the sessions of contenders in these readings whose keys do not say who they are, unless the sessions
    /// are known already. Forgets all other sessions. If the token may not read sessions, the contenders stay without
    /// a name.
    ///
    /// # Errors
    /// Consul does not answer, or refuses for another reason.
    pub async fn learn<'a>(
        &mut self,
        consul: &Client,
        readings: impl IntoIterator<Item = &'a Reading>,
    ) -> Result<(), consul::Error> {
        let missing = stream::iter(self.missing(readings));
        let lookups = missing.map(async |id| match consul.session(&id).await {
            Ok(session) => Ok((id, session)),
            Err(consul::Error::Denied(_)) => Ok((id, None)),
            Err(error) => Err(error),
        });
        let found: Vec<_> = lookups.buffered(LOOKUPS_AT_ONCE).try_collect().await?;
        self.extend(found);
        Ok(())
    }
}
