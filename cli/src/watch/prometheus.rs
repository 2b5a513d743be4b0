//! Metrics as Prometheus reads them: printed, or served.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ascend_alloc::publish;
use clap::Args;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};

use super::source;

const EXITS: &str = "\
PATH is what stats_export names in the process that is looked at: a file or a Unix socket; %p in its name
stands for every process that has not ended. Without one, the configuration of this environment says it.

Exit status: 0 all was printed; 1 something could not be read, what could was printed; 2 an option was refused, or
nothing could be read or served.";

/// Prints the statistics that processes export as Prometheus text, or serves them.
#[derive(Debug, Args)]
#[command(after_help = EXITS)]
pub struct Metrics {
    /// Files or sockets
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Answer HTTP requests for /metrics at this address, such as 127.0.0.1:9400, until the process is ended
    #[arg(long, value_name = "ADDRESS")]
    serve: Option<SocketAddr>,
}

impl Metrics {
    /// Runs the command.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self.make() {
            Ok(code) => ExitCode::from(code),
            Err(reason) => {
                eprintln!("error: {reason}");
                ExitCode::from(2)
            }
        }
    }

    fn make(&self) -> Result<u8, String> {
        let paths = source::named_or_configured(&self.paths)?;
        if let Some(address) = self.serve {
            return serve(address, &paths);
        }
        let (text, failures) = scrape(&paths)?;
        for failure in &failures {
            eprintln!("warning: {failure}");
        }
        if text.is_empty() {
            return Err("there are no statistics of running processes to print".to_owned());
        }
        match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(format!("cannot write the metrics: {error}"))
            }
            _ => Ok(u8::from(!failures.is_empty())),
        }
    }
}

/// Runs what publishes, and answers all that was published as text.
///
/// # Errors
/// The exporter refuses its settings.
pub fn text_of(publish: impl FnOnce()) -> Result<String, String> {
    let recorder = builder().map_err(|error| error.to_string())?.build_recorder();
    metrics::with_local_recorder(&recorder, || {
        publish::describe();
        publish();
    });
    Ok(recorder.handle().render())
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    // 512 B to 32 GiB, by fours.
    let bounds: Vec<f64> = (0..14).map(|power| 512.0 * 4_f64.powi(power)).collect();
    let sizes = Matcher::Full("ascend_alloc_block_size_bytes".to_owned());
    PrometheusBuilder::new().set_buckets_for_metric(sizes, &bounds)
}

/// The metrics of all processes now, and what could not be read.
fn scrape(paths: &[PathBuf]) -> Result<(String, Vec<String>), String> {
    let (mut readings, mut failures) = (Vec::new(), Vec::new());
    for path in source::expand(paths) {
        // What a process has left behind is shown where it is asked for by its name.
        let of_pattern = source::process_of(&path, paths);
        match source::read(&path) {
            Ok(reading) if of_pattern.is_some() && reading.is_left_behind() => {}
            Ok(reading) => readings.push(reading),
            Err(_) if of_pattern.is_some_and(source::has_ended) => {}
            Err(reason) => failures.push(reason),
        }
    }
    if readings.is_empty() {
        return Ok((String::new(), failures));
    }
    let text = text_of(|| {
        let mut allocators: BTreeMap<u32, u32> = BTreeMap::new();
        for document in readings.iter().map(|reading| &reading.document) {
            let allocator = allocators.entry(document.process).or_default();
            *allocator += 1;
            let mut labels = vec![("process", document.process.to_string())];
            if *allocator > 1 {
                labels.push(("allocator", allocator.to_string()));
            }
            document.devices.iter().for_each(|device| device.figures().publish(&labels));
        }
    })?;
    Ok((text, failures))
}

/// Answers one request after the other; each looks anew.
fn serve(address: SocketAddr, paths: &[PathBuf]) -> Result<u8, String> {
    let listener =
        TcpListener::bind(address).map_err(|error| format!("{address} cannot be listened at: {error}"))?;
    let bound = listener.local_addr().map_err(|error| error.to_string())?;
    eprintln!("serving http://{bound}/metrics");
    for client in listener.incoming() {
        // A client that goes away, or says nothing, is its own affair.
        if let Err(error) = client.and_then(|client| answer(client, paths)) {
            eprintln!("warning: a request was not answered: {error}");
        }
    }
    Ok(0)
}

/// The longest request that is read, bytes.
const MOST_REQUEST: u64 = 16 << 10;

fn answer(client: TcpStream, paths: &[PathBuf]) -> io::Result<()> {
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(5));
    client.set_read_timeout(PATIENCE)?;
    client.set_write_timeout(PATIENCE)?;
    let mut lines = BufReader::new(&client).take(MOST_REQUEST).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // Until all headers are read, closing the connection would look like an error to the client.
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, text) = match (method, target.split('?').next().unwrap_or_default()) {
        ("GET" | "HEAD", "/metrics") => match scrape(paths) {
            Ok((text, failures)) if text.is_empty() && !failures.is_empty() => {
                ("503 Service Unavailable", failures.join("\n") + "\n")
            }
            Ok((text, _)) => ("200 OK", text),
            Err(reason) => ("500 Internal Server Error", reason + "\n"),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", "there is /metrics only\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET and HEAD only\n".to_owned()),
    };
    let mut out = &client;
    write!(
        out,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    )?;
    if method != "HEAD" {
        out.write_all(text.as_bytes())?;
    }
    out.flush()
}
