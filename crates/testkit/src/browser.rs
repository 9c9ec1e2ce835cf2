//! Headless browser: Chromium, controlled through a pipe by the DevTools protocol.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use data_encoding::BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PATIENCE, Process, TestCertificate, wait_for};

/// A browser with one page. Dropping it ends the browser.
pub struct Browser {
    // Drop this field first, because the process uses the other fields.
    _process: Process,
    _profile: TempDir,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    number: u64,
    complaints: Vec<String>,
    requests: Vec<String>,
}

/// Point at which a browser begins to use HTTP/3 for a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrowserHttp3 {
    /// The browser uses HTTP/3 for its first request.
    AtOnce,
    /// The browser uses HTTP/3 after the site has offered it.
    Offered,
}

/// Shell command that connects the ends of the pipe to the descriptors that Chromium uses.
const START: &str = r#"exec chromium "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;

impl Browser {
    /// Starts a browser with an empty page and an empty profile, without HTTP/3.
    pub fn start() -> Browser {
        Browser::start_with(&["--disable-quic".to_owned()])
    }

    /// Starts a browser that may use HTTP/3 for a site. The site has this name and certificate, and
    /// the name resolves to `at`.
    pub fn visiting(
        name: &str,
        at: SocketAddr,
        certificate: &TestCertificate,
        http3: BrowserHttp3,
    ) -> Browser {
        // For QUIC, the browser trusts a test's authority only for hosts that this option names,
        // but for all ports of these hosts.
        let port = if http3 == BrowserHttp3::AtOnce { at.port() } else { 1 };
        Browser::start_with(&[
            "--enable-quic".to_owned(),
            format!("--origin-to-force-quic-on={name}:{port}"),
            format!("--host-resolver-rules=MAP {name} {}", at.ip()),
            format!("--ignore-certificate-errors-spki-list={}", certificate.key_hash()),
        ])
    }

    fn start_with(arguments: &[String]) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", START, "sh", "--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(arguments);
        command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
        command.args(["--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        command.env("HOME", profile.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let (commands, output) = process.pipes();
        let (tell, messages) = channel();
        thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if tell.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            _process: process,
            _profile: profile,
            commands,
            messages,
            session: None,
            number: 0,
            complaints: Vec::new(),
            requests: Vec::new(),
        };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Opens an address.
    pub fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert!(answer.get("errorText").is_none(), "{url}: {answer}");
    }

    /// Sets the size of the screen. A screen narrower than 500 pixels counts as a phone.
    pub fn resize(&mut self, width: u32, height: u32) {
        let is_phone = width < 500;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets a media preference of the user, for example `prefer("prefers-color-scheme", "dark")`.
    pub fn prefer(&mut self, what: &str, value: &str) {
        let features = json!({ "features": [{ "name": what, "value": value }] });
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Evaluates an expression in the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", asked);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer:#}");
        answer["result"]["value"].clone()
    }

    /// Returns the text of the first element that matches a selector.
    pub fn text(&mut self, selector: &str) -> String {
        let text = self.evaluate(&format!("document.querySelector({})?.innerText", json!(selector)));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression in the page is true.
    pub fn wait_until(&mut self, expression: &str) {
        let browser = std::cell::RefCell::new(self);
        wait_for(&format!("{expression} in the page"), || {
            let mut browser = browser.borrow_mut();
            (browser.evaluate(&format!("Boolean({expression})")) == true).then_some(())
        });
    }

    /// Waits until the text of an element contains `text`.
    pub fn wait_for_text(&mut self, selector: &str, text: &str) {
        let selector = json!(selector);
        self.wait_until(&format!("document.querySelector({selector})?.innerText.includes({})", json!(text)));
    }

    /// Clicks with the mouse on the middle of the first element that matches a selector. The
    /// element must be visible, and no other element may cover it.
    ///
    /// If the page moves under the mouse in the meantime, the click has no effect and is repeated.
    pub fn click(&mut self, selector: &str) {
        let name = json!(selector);
        self.wait_until(&format!("document.querySelector({name})?.getClientRects().length"));
        let aim = format!(
            "(() => {{
                const element = document.querySelector({name});
                if (!element) return null;
                element.scrollIntoView({{ block: 'center', behavior: 'instant' }});
                const {{ x, y, width, height }} = element.getBoundingClientRect();
                const at = [x + width / 2, y + height / 2];
                if (!element.contains(document.elementFromPoint(...at))) return null;
                window.missed = true;
                document.addEventListener('click', (event) => {{
                    window.missed = !document.querySelector({name})?.contains(event.target);
                    if (window.missed) {{
                        event.preventDefault();
                        event.stopImmediatePropagation();
                    }}
                }}, {{ capture: true, once: true }});
                return at;
            }})()"
        );
        wait_for(&format!("a click on {selector}, with nothing before it"), || {
            let at = self.evaluate(&aim);
            if at.is_null() {
                return None;
            }
            for kind in ["mousePressed", "mouseReleased"] {
                let event =
                    json!({ "type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1 });
                self.call("Input.dispatchMouseEvent", event);
            }
            // If the browser has left the page in the meantime, there is nothing to check.
            (self.evaluate("window.missed ?? false") == false).then_some(())
        });
    }

    /// Enters text into the focused element.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key: `Tab`, `Enter`, `Escape`.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            _ => panic!("no code for {key}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Takes a screenshot as a PNG.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        BASE64.decode(answer["data"].as_str().unwrap().as_bytes()).unwrap()
    }

    /// Returns errors and warnings on the console since the last call, including violations of the
    /// content security policy.
    pub fn complaints(&mut self) -> Vec<String> {
        self.evaluate("0");
        std::mem::take(&mut self.complaints)
    }

    /// Returns every URL that the page has requested.
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut command = json!({ "id": self.number, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let mut message = self.messages.recv_timeout(PATIENCE).expect("Chromium answers");
            if message["id"] == self.number {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].take();
            }
            self.hear(&message);
        }
    }

    fn hear(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.requests.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            Some("Runtime.exceptionThrown") => self.complaints.push(params.to_string()),
            Some("Runtime.consoleAPICalled")
                if ["error", "warning", "assert"].iter().any(|kind| params["type"] == *kind) =>
            {
                self.complaints.push(params.to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] != "verbose" => {
                self.complaints.push(params["entry"].to_string());
            }
            _ => {}
        }
    }
}
