//! The shell of a reader.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Stdio,
    time::Duration,
};

use testbed::{Bed, Consul, Folder, operator_program, server_folders};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::page::root;

/// How long one block may take: some build a program for release.
const PATIENCE: Duration = Duration::from_mins(15);

/// A bash in a folder with the project's manifests. Its path has the programs of the docs, and those that the scene
/// adds ([`Self::program`]). It ends at the first command that fails.
pub(crate) struct Shell {
    folder: Folder,
    env: Vec<(String, String)>,
    instead: Vec<(String, String)>,
}

impl Shell {
    /// A shell without servers.
    pub(crate) fn new() -> Self {
        let folder = Folder::new().expect("a folder");
        let here = folder.path();
        fs::create_dir(here.join("bin")).expect("a folder for programs");
        for name in ["config", "crds", "charts"] {
            symlink(root().join(name), here.join(name)).expect("a link");
        }
        let operator = operator_program().expect("the operator's program");
        let ours = [
            here.join("bin"),
            operator.parent().expect("its folder").to_owned(),
        ];
        let known = env::var("PATH").unwrap_or_default();
        let programs = ours.into_iter().chain(server_folders());
        let path = env::join_paths(programs.chain(env::split_paths(&known)));
        let path = path.expect("a path").into_string().expect("UTF-8");
        let mut shell = Self {
            folder,
            env: Vec::new(),
            instead: Vec::new(),
        };
        let home = shell.path().display().to_string();
        shell.set("PATH", &path);
        shell.set("HOME", &home);
        shell
    }

    /// With this Consul, and the token for it.
    pub(crate) fn with_consul(consul: &Consul) -> Self {
        let mut shell = Self::new();
        shell.set("CONSUL_HTTP_ADDR", consul.address());
        if let Some(token) = consul.token() {
            shell.set("CONSUL_HTTP_TOKEN", token);
        }
        for documented in [
            "http://127.0.0.1:8500",
            "http://consul-server.consul.svc:8500",
        ] {
            shell.instead_of(documented, consul.address());
        }
        let run = "cargo run --bin consul-semaphore-operator --";
        shell.instead_of(run, "consul-semaphore-operator");
        shell.instead_of("127.0.0.1:8080", "127.0.0.1:0");
        shell
    }

    /// With a bed's servers, as their admin; kubectl uses the namespace.
    pub(crate) async fn with(bed: &Bed, namespace: &str) -> Self {
        Self::on(bed.kubeconfig(), bed.consul(), namespace).await
    }

    /// Like [`Self::with`], for servers without a bed.
    pub(crate) async fn on(kubeconfig: &Path, consul: &Consul, namespace: &str) -> Self {
        let mut shell = Self::with_consul(consul);
        let original = kubeconfig;
        let kubeconfig = shell.path().join("kubeconfig");
        fs::copy(original, &kubeconfig).expect("the kubeconfig");
        shell.set("KUBECONFIG", &kubeconfig.display().to_string());
        shell
            .run(&format!(
                "kubectl config set-context --current --namespace={namespace}"
            ))
            .await;
        shell
    }

    /// Its folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Sets a variable.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Puts a folder, relative to the shell's, first on the path.
    pub(crate) fn put_on_path(&mut self, folder: &str) {
        let folder = self.path().join(folder).display().to_string();
        let path = self.env.iter_mut().find(|(name, _)| name == "PATH");
        let (_, path) = path.expect("a path");
        *path = format!("{folder}:{path}");
    }

    /// Replaces what has another name here than in the docs: addresses, and what `...` means.
    pub(crate) fn instead_of(&mut self, documented: &str, real: &str) {
        self.instead.push((documented.to_owned(), real.to_owned()));
    }

    /// Writes a file into its folder.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).expect(name);
    }

    /// Adds a program of the reader: a script. A name with a slash is not on the path.
    pub(crate) fn program(&self, name: &str, script: &str) {
        let file = match name.strip_prefix("./") {
            Some(name) => self.path().join(name),
            None => self.path().join("bin").join(name),
        };
        fs::write(&file, format!("#!/bin/bash\n{script}\n")).expect(name);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect(name);
    }

    /// Runs commands, and returns their stdout. They must succeed.
    pub(crate) async fn run(&self, commands: &str) -> String {
        let [code, out, err] = self.end_of(commands).await;
        assert_eq!(code, "0", "{commands}\n{out}\n{err}");
        out
    }

    /// Runs commands, and returns their exit code, stdout and stderr.
    pub(crate) async fn end_of(&self, commands: &str) -> [String; 3] {
        let mut bash = self.bash(commands);
        let output = bash.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
        let output = timeout(PATIENCE, output).await;
        let output = output
            .unwrap_or_else(|_| panic!("it does not end: {commands}"))
            .expect("bash");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let code = output
            .status
            .code()
            .map_or_else(|| output.status.to_string(), |code| code.to_string());
        [code, text(output.stdout), text(output.stderr)]
    }

    /// Starts one command that runs until the returned value is dropped. Its output is written to the file `log` in
    /// the shell's folder.
    pub(crate) fn start(&self, command: &str, log: &str) -> Child {
        let log = fs::File::create(self.path().join(log)).expect("a log");
        let mut bash = self.bash(&format!("exec env {}", command.trim()));
        let error = log.try_clone().expect("a log");
        bash.stdout(log).stderr(error).spawn().expect("bash")
    }

    fn bash(&self, commands: &str) -> Command {
        let mut commands = commands.to_owned();
        for (documented, real) in &self.instead {
            commands = commands.replace(documented, real);
        }
        let mut bash = Command::new("bash");
        bash.args(["-eo", "pipefail", "-c", &commands])
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        bash.current_dir(self.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        bash
    }
}
