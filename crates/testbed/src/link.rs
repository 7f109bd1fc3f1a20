//! A TCP connection to a server that can be cut.
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::Result;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// A TCP proxy on a free port of loopback, until it is dropped.
///
/// While it is cut, its connections are closed and new ones get no answer. What was sent in the meantime never
/// arrives.
#[derive(Debug)]
pub struct Link {
    address: String,
    open: watch::Sender<bool>,
    made: Arc<AtomicUsize>,
    carrying: JoinHandle<()>,
}

impl Link {
    /// Its address (`host:port`).
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How many connections have been made to it.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Cuts the link: nothing gets through from now on.
    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    /// Mends the link: new connections get through again.
    pub fn mend(&self) {
        self.open.send_replace(true);
    }

    /// Starts a link to this server (`host:port`).
    pub async fn start(server: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let (open, is_open) = watch::channel(true);
        let made = Arc::<AtomicUsize>::default();
        let count = made.clone();
        let carrying = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((near, _)) = listener.accept() => {
                        count.fetch_add(1, Ordering::Relaxed);
                        connections.spawn(carry(near, server.clone(), is_open.clone()));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self {
            address,
            open,
            made,
            carrying,
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.carrying.abort();
    }
}

/// Forwards one connection until either end closes it, or the link is cut.
async fn carry(mut near: TcpStream, server: String, mut open: watch::Receiver<bool>) -> Result<()> {
    let cut = !*open.borrow();
    if cut {
        // Stay silent, and close it once the link is mended, so that nothing sent in the meantime arrives late.
        open.wait_for(|open| *open).await?;
        return Ok(());
    }
    let mut far = TcpStream::connect(server).await?;
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = open.wait_for(|open| !*open) => {}
    }
    Ok(())
}
