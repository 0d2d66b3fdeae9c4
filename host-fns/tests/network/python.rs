//! The guest's HTTP modules in a CPython, with a broker behind them.
//!
//! The guest itself is built apart; what its modules do is the same in any
//! Python, and here they meet the real broker and real servers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fumehood_host_fns::Limits;

use crate::support::{Net, OTHER, PUBLIC, flags, read_request, response};

fn serve(stream: &mut TcpStream) {
    while let Some((head, body)) = read_request(stream) {
        if stream.write_all(&answer(&head, &body)).is_err() || head.contains(" /cut ") {
            return;
        }
    }
}

fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let path = target.split('?').next().unwrap();
    let number = || path.rsplit('/').next().unwrap().parse::<usize>().unwrap_or(0);
    let to = || target.split_once("?to=").map_or("", |(_, to)| to).to_owned();
    let plain = |body: &[u8]| response("200 OK", "Content-Type: text/plain\r\n", body);
    let echoed = || {
        let headers: serde_json::Map<String, serde_json::Value> = head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.into()))
            .collect();
        let body = String::from_utf8_lossy(body);
        let seen = serde_json::json!({"method": method, "target": target, "headers": headers, "body": body});
        let text = seen.to_string();
        let kind = "Content-Type: application/json\r\n";
        if method == "HEAD" {
            format!("HTTP/1.1 200 OK\r\n{kind}Content-Length: {}\r\n\r\n", text.len()).into_bytes()
        } else {
            response("200 OK", kind, text.as_bytes())
        }
    };
    match path.split('/').nth(1).unwrap_or_default() {
        "status" => response(&format!("{} X", number()), "", b"status"),
        "redirect" => {
            response(&format!("{} X", number()), &format!("Location: {}\r\n", to()), b"moved")
        }
        "circle" => response("302 X", "Location: /circle\r\n", b""),
        "cookie" => response("200 OK", "Set-Cookie: token=abc; Path=/\r\n", b""),
        "login" => response("302 X", "Set-Cookie: token=abc; Path=/\r\nLocation: /echo\r\n", b""),
        "lines" => {
            let lines: String = (0..number()).map(|line| format!("line {line}\n")).collect();
            plain(lines.as_bytes())
        }
        "bytes" => plain(&vec![b'x'; number()]),
        "length" => plain(body.len().to_string().as_bytes()),
        "text" => plain("caf\u{e9}".as_bytes()),
        "cut" => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this".to_vec(),
        "slow" => {
            std::thread::sleep(Duration::from_secs(2));
            plain(b"slow")
        }
        "wait" => {
            std::thread::sleep(Duration::from_millis(300));
            plain(format!("waited {}", number()).as_bytes())
        }
        "gzip" => {
            let body = crate::bodies::coded("gzip", "compressed ".repeat(1000).as_bytes());
            response("200 OK", "Content-Encoding: gzip\r\nContent-Type: text/plain\r\n", &body)
        }
        _ => echoed(),
    }
}

#[test]
fn usual_code_runs_unchanged() {
    let net = Net::new();
    net.name("api.test", &[&[PUBLIC]]);
    net.name("other.test", &[&[OTHER]]);
    net.name("closed.test", &[&["151.101.1.7"]]);
    net.serve(&format!("{PUBLIC}:80"), |mut stream| serve(&mut stream));
    net.serve(&format!("{OTHER}:80"), |mut stream| serve(&mut stream));
    let policy = flags(&["api.test:80", "other.test:80", "closed.test:80", "nowhere.test:80"]);
    let limits = Limits { requests: 10_000, ..Limits::default() };
    let mut guest = net.guest_with(policy, |config| config.limits = limits);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut child = Command::new("python3")
        .arg("-X")
        .arg("utf8")
        .arg(here.join("tests/network/python/run.py"))
        .arg(here.join("../guest/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 is needed to run the guest's modules outside the guest");
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut errors = child.stderr.take().unwrap();
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = errors.read_to_string(&mut text);
        text
    });
    let mut head = [0; 8];
    while from.read_exact(&mut head).is_ok() {
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut request = vec![0; word(4) as usize];
        from.read_exact(&mut request).unwrap();
        let (length, body) = match guest.call(word(0), &request) {
            Ok(body) => (body.len() as i64, body),
            Err(code) => (code, Vec::new()),
        };
        to.write_all(&length.to_le_bytes()).unwrap();
        to.write_all(&body).unwrap();
        to.flush().unwrap();
    }
    let status = child.wait().unwrap();
    let said = said.join().unwrap();
    assert!(status.success(), "{said}");
    let report = guest.report();
    assert!(report.denials.iter().any(|denial| denial.target.contains("denied.test")));
    assert!(net.names.asked().iter().all(|name| name != "denied.test"));
}
