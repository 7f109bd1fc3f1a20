//! Keeps how many operations a transaction of a queue may have.

/// Number of operations that every Consul accepts in a transaction.
pub(super) const OPERATIONS_ALWAYS_TAKEN: usize = 64;

/// Number of operations that a transaction of a queue may have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capacity {
    /// Number of operations; `None` while Consul can't be used.
    operations: Option<usize>,
    /// Whether a transaction of the queue was too large, so that the next ones have few operations.
    is_cautious: bool,
}

impl Capacity {
    /// Returns the capacity of a queue whose access to Consul has changed. `None` means that it has no access.
    pub(super) fn of_access(operations: Option<usize>) -> Self {
        Self {
            operations,
            is_cautious: false,
        }
    }

    /// Returns how many operations a transaction may have, or `None` while Consul can't be used.
    pub(super) fn operations(self) -> Option<usize> {
        self.operations
    }

    /// Records how many operations Consul accepts in a transaction.
    pub(super) fn set(&mut self, operations: usize) {
        let most = if self.is_cautious {
            operations.min(OPERATIONS_ALWAYS_TAKEN)
        } else {
            operations
        };
        self.operations = self.operations.and(Some(most));
    }

    /// Limits the next transactions of the queue to the number of operations that every Consul accepts. A transaction
    /// with more operations was too large, and its bytes may be the reason.
    pub(super) fn be_cautious(&mut self) {
        self.is_cautious = true;
        self.set(self.operations.unwrap_or(OPERATIONS_ALWAYS_TAKEN));
    }
}
