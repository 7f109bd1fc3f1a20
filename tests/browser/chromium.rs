//! A headless Chromium, controlled over a pipe with its `DevTools` protocol: JSON messages, each ended by a zero
//! byte. It can reach only loopback, and ends when the pipe is closed.

use std::{
    collections::HashMap,
    env,
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use testbed::eventually;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::Mutex,
    time::timeout,
};

/// How long one command may take.
const PATIENCE: Duration = Duration::from_secs(100);

/// The possible names of the program.
const NAMES: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];

/// Helpers for the scripts that inspect the page.
const WORDS: &str = "globalThis.text = (element) => element.textContent;
    globalThis.card = (name) => [...document.querySelectorAll('article')]
        .find((article) => article.querySelector('h2').textContent.endsWith('/' + name));";

/// A browser.
pub(crate) struct Chromium {
    pipe: Mutex<Pipe>,
    next: AtomicU64,
    _folder: testbed::Folder,
    _process: Child,
}

struct Pipe {
    write: ChildStdin,
    read: BufReader<ChildStdout>,
    /// The events that it has sent.
    events: Vec<Value>,
}

/// A page in the browser.
pub(crate) struct Page<'a> {
    browser: &'a Chromium,
    session: String,
}

impl Chromium {
    pub(crate) fn start() -> Self {
        let folder = testbed::Folder::new().expect("a folder");
        let log = std::fs::File::create(folder.path().join("chromium.log")).expect("a log");
        let mut process = Command::new("bash")
            // It listens on 3 and speaks on 4.
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#])
            .arg(program())
            .args(["--headless", "--remote-debugging-pipe", "--no-first-run"])
            .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .args(["--disable-sync", "--no-proxy-server", "--hide-scrollbars"])
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
            .arg(format!(
                "--user-data-dir={}",
                folder.path().join("chromium").display()
            ))
            .env("HOME", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("Chromium starts");
        let pipe = Pipe {
            write: process.stdin.take().expect("a pipe"),
            read: BufReader::new(process.stdout.take().expect("a pipe")),
            events: Vec::new(),
        };
        Self {
            pipe: Mutex::new(pipe),
            next: AtomicU64::new(1),
            _folder: folder,
            _process: process,
        }
    }

    /// Opens a page.
    pub(crate) async fn open(&self, url: &str) -> Page<'_> {
        self.open_with(url, "").await
    }

    /// Opens a page, and runs this script before its own.
    pub(crate) async fn open_with(&self, url: &str, script: &str) -> Page<'_> {
        let blank = json!({ "url": "about:blank" });
        let target = self.call(None, "Target.createTarget", blank).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call(None, "Target.attachToTarget", attach).await;
        let page = Page {
            browser: self,
            session: session["sessionId"].as_str().expect("a session").to_owned(),
        };
        page.call("Page.enable", json!({})).await;
        page.call("Log.enable", json!({})).await;
        page.call("Runtime.enable", json!({})).await;
        let words = json!({ "source": format!("{WORDS}\n{script}") });
        page.call("Page.addScriptToEvaluateOnNewDocument", words)
            .await;
        // It behaves like the page in the window in front, also beside others.
        page.call(
            "Emulation.setFocusEmulationEnabled",
            json!({ "enabled": true }),
        )
        .await;
        page.call("Page.navigate", json!({ "url": url })).await;
        page
    }

    /// Sends a command, and returns the answer.
    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Value {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut command = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = session {
            command["sessionId"] = session.into();
        }
        let mut pipe = self.pipe.lock().await;
        let answer = timeout(PATIENCE, pipe.ask(id, &command)).await;
        let mut answer = answer.unwrap_or_else(|_| panic!("{method} takes too long"));
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].take()
    }
}

impl Pipe {
    async fn ask(&mut self, id: u64, command: &Value) -> Value {
        let command = format!("{command}\0");
        let written = self.write.write_all(command.as_bytes()).await;
        written.expect("Chromium runs: chromium.log in the folder of this test says more");
        loop {
            let mut message = Vec::new();
            let read = self.read.read_until(0, &mut message).await;
            assert!(read.expect("it is readable") > 0, "Chromium has ended");
            message.pop();
            let message: Value = serde_json::from_slice(&message).expect("JSON");
            if message["id"] == id {
                return message;
            }
            self.events.push(message);
        }
    }
}

impl Page<'_> {
    async fn call(&self, method: &str, params: Value) -> Value {
        self.browser.call(Some(&self.session), method, params).await
    }

    /// Runs a script, and returns its result.
    pub(crate) async fn run(&self, script: &str) -> Value {
        let script = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.call("Runtime.evaluate", script).await;
        let thrown = &answer["exceptionDetails"];
        assert!(thrown.is_null(), "{thrown}");
        answer["result"]["value"].take()
    }

    /// Waits until a script returns true. An exception, because something does not exist yet, counts as false.
    pub(crate) async fn until(&self, what: &str, script: &str) {
        let script = format!(
            "(() => {{ try {{ return Boolean({script}); }} catch {{ return false; }} }})()"
        );
        eventually(what, || async {
            if self.run(&script).await == true {
                return Ok(());
            }
            let shown = self.run("document.body.innerText").await;
            Err(shown.as_str().unwrap_or_default().to_owned())
        })
        .await;
    }

    /// Sets the size of the window.
    pub(crate) async fn window(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Sets whether the user prefers light or dark colours.
    pub(crate) async fn colours(&self, scheme: &str) {
        self.prefers("color-scheme", scheme).await;
    }

    /// Sets what the user prefers.
    pub(crate) async fn prefers(&self, what: &str, value: &str) {
        let name = format!("prefers-{what}");
        let media = json!({ "features": [{ "name": name, "value": value }] });
        self.call("Emulation.setEmulatedMedia", media).await;
    }

    /// Presses a key: `Tab`, `Enter` or `Space`.
    pub(crate) async fn press(&self, code: &str) {
        let (key, number, text) = match code {
            "Enter" => ("Enter", 13, "\r"),
            "Space" => (" ", 32, " "),
            _ => (code, 9, ""),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({
                "type": kind, "key": key, "code": code, "windowsVirtualKeyCode": number, "text": text,
            });
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Types a text.
    pub(crate) async fn types(&self, text: &str) {
        self.call("Input.insertText", json!({ "text": text })).await;
    }

    /// What a screen reader is given, in the order of the page: a role and a name each.
    pub(crate) async fn heard(&self) -> Vec<String> {
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().expect("nodes");
        let by_id: HashMap<&str, &Value> = nodes
            .iter()
            .filter_map(|node| Some((node["nodeId"].as_str()?, node)))
            .collect();
        let mut heard = Vec::new();
        let mut left: Vec<&Value> = nodes.first().into_iter().collect();
        while let Some(node) = left.pop() {
            if node["ignored"] != true {
                let text = |field: &str| node[field]["value"].as_str().unwrap_or_default();
                let said = format!("{} {}", text("role"), text("name"));
                heard.push(said.trim_end().to_owned());
            }
            let children = node["childIds"].as_array().into_iter().flatten().rev();
            left.extend(children.filter_map(|id| by_id.get(id.as_str()?)));
        }
        heard
    }

    /// How many nodes the page has, and how many bytes its scripts keep, when all that nobody uses was collected.
    pub(crate) async fn keeps(&self) -> (u64, u64) {
        self.call("HeapProfiler.collectGarbage", json!({})).await;
        let counters = self.call("Memory.getDOMCounters", json!({})).await;
        let heap = self.call("Runtime.getHeapUsage", json!({})).await;
        let number = |of: &Value| of.as_u64().expect("a number");
        (number(&counters["nodes"]), number(&heap["usedSize"]))
    }

    /// A screenshot of the window, as PNG.
    pub(crate) async fn picture(&self) -> Vec<u8> {
        let answer = self
            .call("Page.captureScreenshot", json!({ "format": "png" }))
            .await;
        let data = answer["data"].as_str().expect("a picture");
        BASE64_STANDARD.decode(data).expect("base64")
    }

    /// What the browser refused because of the page's policy, and what its scripts threw.
    pub(crate) async fn violations(&self) -> Vec<String> {
        // All earlier events are read by then.
        self.run("0").await;
        let pipe = self.browser.pipe.lock().await;
        let is_wrong = |event: &&Value| match event["method"].as_str() {
            // The network also logs a server that is away, and a refused login.
            Some("Log.entryAdded") => {
                let entry = &event["params"]["entry"];
                entry["level"] == "error" && entry["source"] != "network"
            }
            Some("Runtime.consoleAPICalled") => event["params"]["type"] == "error",
            method => method == Some("Runtime.exceptionThrown"),
        };
        let wrong = pipe.events.iter().filter(is_wrong);
        wrong.map(ToString::to_string).collect()
    }
}

/// The path of the program.
fn program() -> PathBuf {
    if let Some(path) = env::var_os("CHROMIUM") {
        return path.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = env::split_paths(&path).collect();
    let paths = NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    paths.into_iter().find(|path| path.exists()).unwrap_or_else(|| {
        panic!(
            "no Chromium: on Debian `apt-get install chromium-headless-shell fonts-dejavu-core` brings one, elsewhere the \
             package chromium; or say where it is with CHROMIUM=/path"
        )
    })
}
