//! The examples in the help of each command.

pub(super) const EXEC: &str = "\
Examples:
  consul-semaphore exec --prefix locks/db --limit 3 -- ./migrate
  consul-semaphore exec --prefix tasks/report --limit 1 --try -- ./report
  consul-semaphore exec --semaphore prefix=locks/db,limit=3 \\
    --semaphore prefix=licenses,limit=5,slots=2 --wait-for 30m -- ./import";

pub(super) const ACQUIRE: &str = "\
Examples:
  consul-semaphore acquire --prefix locks/db --limit 3 --for 2h >> \"$GITHUB_ENV\"
In a shell, where the first line ends a script with `set -e` if there is no slot:
  slot=$(consul-semaphore acquire --prefix locks/db -n 3 --for 2h --output shell)
  eval \"$slot\"";

pub(super) const RENEW: &str = "\
Example, after the variables that acquire printed have been set:
  consul-semaphore renew";

pub(super) const HELD: &str = "\
Example, in a command that exec runs:
  consul-semaphore held || exit 1";

pub(super) const LIST: &str = "\
Examples:
  consul-semaphore list
  consul-semaphore list locks --output json";

pub(super) const SHOW: &str = "\
Example:
  consul-semaphore show locks/db";

pub(super) const WATCH: &str = "\
Example:
  consul-semaphore watch locks";

pub(super) const RELEASE: &str = "\
Examples:
  consul-semaphore release
  consul-semaphore release locks/db 4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5";

pub(super) const COMPLETION: &str = "\
Example:
  source <(consul-semaphore completion bash)";

pub(super) const MANUAL: &str = "\
Example:
  consul-semaphore manual /usr/local/share/man/man1";
