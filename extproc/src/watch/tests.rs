//! The watch against servers that behave in every way, and names that stand for this and that.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use attache_model_server::{Config as ModelConfig, ModelServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::*;
use crate::affinity::{AffinityPolicy, PlacementMode, PoolStats, Scrape, Scraping};
use crate::config::model::{Config, Settings};
use crate::config::{self, Documents};
use crate::limit::Ledger;
use crate::telemetry::Telemetry;

const GOOD: &str = "vllm:num_requests_waiting 3\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n";
const GOOD_SCRAPE: Scrape = Scrape { waiting: 3.0, running: 2.0, kv_usage: 0.5, capacity_tokens: None };

/// A world whose one Backend has these endpoints, asked often.
fn world(endpoints: &str) -> Arc<World> {
    world_with(endpoints, &Scraping { interval: Duration::from_millis(50), ..Scraping::default() })
}

fn world_with(endpoints: &str, scraping: &Scraping) -> Arc<World> {
    let text = format!(
        "{{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {{name: b}}, \
         spec: {{endpoints: [{endpoints}]}}}}\n---\n\
         apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIServiceBackend\nmetadata: {{name: b}}\n\
         spec: {{schema: {{name: OpenAI}}, backendRef: {{group: gateway.envoyproxy.io, kind: Backend, name: b}}}}\n"
    );
    let mut outcome = config::compile(Documents::from_text("a.yaml", &text), Settings::default(), 1, None).unwrap();
    let backend = &mut outcome.config.backends[0];
    let mode = backend.affinity.mode;
    backend.affinity = Arc::new(AffinityPolicy { mode, scraping: Some(scraping.clone()), ..AffinityPolicy::default() });
    let config: Arc<ArcSwap<Config>> = Arc::new(ArcSwap::from_pointee(outcome.config));
    let world = Arc::new(World::new(Settings::default(), config, Ledger::memory(), Arc::new(Telemetry::default())));
    world.fleet.adopt(&world.config.load(), Instant::now());
    world
}

fn ip(address: SocketAddr) -> String {
    format!("{{ip: {{address: {}, port: {}}}}}", address.ip(), address.port())
}

fn watched(world: &Arc<World>) -> Watch {
    Watch::start(world, watch::channel(()).1, SystemLookup)
}

fn stats(world: &World) -> PoolStats {
    world.fleet.pools()[0].stats(Instant::now())
}

fn page(world: &World) -> Option<Scrape> {
    stats(world).endpoints.first()?.page
}

fn scrapes(world: &World, outcome: Scraped) -> u64 {
    world.telemetry.watch_stats().scrapes().find(|(one, _)| *one == outcome).unwrap().1
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a server does with a request.
#[derive(Clone)]
enum Behaviour {
    /// A whole answer.
    Say(String),
    /// The beginning of an answer, then the same bytes again and again.
    SayForEver(&'static str),
    /// Nothing.
    Hang,
}

fn answer(status: &str, headers: &str, body: &str) -> Behaviour {
    let length = body.len();
    Behaviour::Say(format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}"))
}

fn good(body: &str) -> Behaviour {
    answer("200 OK", "", body)
}

/// What a server saw.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    requests: Mutex<Vec<String>>,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

impl Seen {
    fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

/// A server that does this with the n-th request.
async fn server(behaviour: impl Fn(usize) -> Behaviour + Send + Sync + 'static) -> (SocketAddr, Arc<Seen>, Task) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Seen::default()));
    let (behaviour, noted) = (Arc::new(behaviour), Arc::clone(&seen));
    let task = Task::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(converse(stream, Arc::clone(&behaviour), Arc::clone(&noted)));
        }
    });
    (address, seen, task)
}

async fn converse<S>(mut stream: S, behaviour: Arc<impl Fn(usize) -> Behaviour>, seen: Arc<Seen>)
where
    S: AsyncReadExt + AsyncWriteExt + Unpin,
{
    seen.connections.fetch_add(1, Ordering::Relaxed);
    let under_way = seen.under_way.fetch_add(1, Ordering::Relaxed) + 1;
    seen.most_under_way.fetch_max(under_way, Ordering::Relaxed);
    let mut head = Vec::new();
    while let Ok(1..) = stream.read_buf(&mut head).await {
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let number = seen.requests();
        seen.requests.lock().unwrap().push(String::from_utf8(std::mem::take(&mut head)).unwrap());
        match behaviour(number) {
            Behaviour::Say(text) => stream.write_all(text.as_bytes()).await.unwrap(),
            Behaviour::SayForEver(text) => while stream.write_all(text.as_bytes()).await.is_ok() {},
            Behaviour::Hang => {
                // Until the other side has enough of it.
                let _ = stream.read(&mut [0]).await;
                break;
            }
        }
    }
    seen.under_way.fetch_sub(1, Ordering::Relaxed);
}

#[tokio::test]
async fn the_page_of_a_model_server_is_believed() {
    let model = ModelServer::start(ModelConfig { cache_tokens: 64_000, ..ModelConfig::default() }).await.unwrap();
    let world = world(&ip(model.addr()));
    let _watch = watched(&world);
    until("the page was read", || page(&world).is_some()).await;
    let expected = Scrape { capacity_tokens: Some(64_000), ..Scrape::default() };
    assert_eq!(page(&world), Some(expected));
    assert_eq!(model.requests_total(), 0, "scrapes are no requests");
}

#[tokio::test]
async fn a_name_is_scraped_at_its_address() {
    let model = ModelServer::start(ModelConfig::default()).await.unwrap();
    let world = world(&format!("{{fqdn: {{hostname: localhost, port: {}}}}}", model.addr().port()));
    let mut watch = watched(&world);
    watch.first_answers().await;
    let members = world.fleet.pools()[0].members();
    assert_eq!(members.iter().map(|member| member.id.to_string()).collect::<Vec<_>>(), [model.addr().to_string()]);
    until("the page was read", || page(&world).is_some()).await;
}

#[tokio::test]
async fn a_good_page_is_asked_for_over_one_connection_as_a_scraper_asks() {
    let (address, seen, _server) = server(|_| good(GOOD)).await;
    let world = world(&ip(address));
    let _watch = watched(&world);
    until("four scrapes", || scrapes(&world, Scraped::Ok) >= 4).await;
    assert_eq!(page(&world), Some(GOOD_SCRAPE));
    assert_eq!(seen.connections.load(Ordering::Relaxed), 1);
    let request = seen.requests.lock().unwrap()[0].to_lowercase();
    assert!(request.starts_with("get /metrics http/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: {address}\r\n")) && request.contains("accept-encoding: identity\r\n"));
}

#[tokio::test]
async fn a_server_that_closes_every_connection_is_read_all_the_same() {
    let (address, _, _server) = server(|_| answer("200 OK", "connection: close\r\n", GOOD)).await;
    let world = world(&ip(address));
    let _watch = watched(&world);
    until("four scrapes", || scrapes(&world, Scraped::Ok) >= 4).await;
    assert_eq!(Scraped::ALL.iter().map(|outcome| scrapes(&world, *outcome)).skip(1).sum::<u64>(), 0);
}

#[tokio::test]
async fn no_page_that_lies_or_is_none_is_believed() {
    let long = GOOD.repeat(20_000);
    let cases = [
        (good("vllm:num_requests_waiting NaN\n"), Scraped::Implausible),
        (good("vllm:num_requests_waiting -4\n"), Scraped::Implausible),
        (good("vllm:num_requests_waiting 1e300\n"), Scraped::Implausible),
        (good("<html></html>"), Scraped::Missing),
        (good(""), Scraped::Missing),
        (good(&long), Scraped::TooLarge),
        (Behaviour::SayForEver("HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_waiting 1\n"), Scraped::TooLarge),
        (Behaviour::SayForEver("x"), Scraped::Unreachable),
        (Behaviour::Hang, Scraped::Timeout),
        (
            Behaviour::Say("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nvllm:num_requests_waiting 1\n".to_owned()),
            Scraped::Timeout,
        ),
        (Behaviour::Say("SSH-2.0-OpenSSH_9.6\r\n".to_owned()), Scraped::Unreachable),
        (answer("404 Not Found", "", GOOD), Scraped::Absent),
        (answer("401 Unauthorized", "", GOOD), Scraped::Absent),
        (answer("302 Found", "location: /other\r\n", GOOD), Scraped::Absent),
        (answer("500 Internal Server Error", "", GOOD), Scraped::Status),
    ];
    for (case, (behaviour, outcome)) in cases.into_iter().enumerate() {
        let (address, seen, _server) = server(move |_| behaviour.clone()).await;
        let world = world(&ip(address));
        let _watch = watched(&world);
        until(&format!("case {case}"), || scrapes(&world, outcome) >= 2).await;
        assert_eq!((page(&world), scrapes(&world, Scraped::Ok)), (None, 0), "case {case}");
        let requests = seen.requests.lock().unwrap();
        assert!(requests.iter().all(|request| request.starts_with("GET /metrics ")), "case {case}: {requests:?}");
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_not_believed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = world(&ip(listener.local_addr().unwrap()));
    let _watch = watched(&world);
    let _server = Task::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n".to_vec();
            answer.extend([0xff; 30]);
            let _ = stream.write_all(&answer).await;
        }
    });
    until("it was read", || scrapes(&world, Scraped::NotText) >= 2).await;
    assert_eq!(page(&world), None);
}

#[tokio::test]
async fn an_endpoint_that_hangs_is_asked_once_at_a_time_and_delays_no_other() {
    let (hanging, seen, _hanging) = server(|_| Behaviour::Hang).await;
    let (well, _, _well) = server(|_| good(GOOD)).await;
    let world = world(&[ip(hanging), ip(well)].join(", "));
    let _watch = watched(&world);
    until("it was asked thrice", || scrapes(&world, Scraped::Timeout) >= 3).await;
    assert_eq!(seen.most_under_way.load(Ordering::Relaxed), 1);
    let pages = stats(&world).endpoints.into_iter().map(|endpoint| endpoint.page).collect::<Vec<_>>();
    assert_eq!(pages, [None, Some(GOOD_SCRAPE)]);
    assert!(scrapes(&world, Scraped::Ok) > scrapes(&world, Scraped::Timeout));
}

#[tokio::test]
async fn a_page_that_comes_and_goes_counts_while_it_is_fresh() {
    let (address, _, _server) = server(|n| if n % 2 == 0 { good(GOOD) } else { answer("503 Busy", "", "") }).await;
    let world = world(&ip(address));
    let _watch = watched(&world);
    until("it came and went", || scrapes(&world, Scraped::Ok) >= 3 && scrapes(&world, Scraped::Status) >= 3).await;
    assert_eq!(page(&world), Some(GOOD_SCRAPE));
}

#[tokio::test]
async fn a_page_at_a_port_of_its_own_is_asked_for_there() {
    let (address, seen, _server) = server(|_| good(GOOD)).await;
    let scraping = Scraping { port: Some(address.port()), path: Arc::from("/stats?x=y"), ..Scraping::default() };
    let world = world_with("{ip: {address: 127.0.0.1, port: 9}}", &scraping);
    let _watch = watched(&world);
    until("the page was read", || page(&world).is_some()).await;
    assert!(seen.requests.lock().unwrap()[0].starts_with("GET /stats?x=y HTTP/1.1\r\n"));
}

#[tokio::test]
async fn a_unix_socket_has_a_page_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let _server = Task::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(converse(stream, Arc::new(|_| good(GOOD)), Arc::default()));
        }
    });
    let world = world(&format!("{{unix: {{path: {}}}}}", path.display()));
    assert_eq!(world.config.load().backends[0].affinity.mode, PlacementMode::Cluster);
    let _watch = watched(&world);
    until("the page was read", || page(&world) == Some(GOOD_SCRAPE)).await;
}

#[tokio::test]
async fn a_process_that_began_later_makes_the_pool_forget_what_the_endpoint_held() {
    let page = |n: usize| good(&format!("{GOOD}process_start_time_seconds {}\n", if n < 3 { 100 } else { 200 }));
    let (address, _, _server) = server(page).await;
    let world = world(&ip(address));
    let _watch = watched(&world);
    until("six scrapes", || scrapes(&world, Scraped::Ok) >= 6).await;
    assert_eq!(stats(&world).restarts, 1);
}

/// Says what it was told to say.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<IpAddr>>>, Arc<AtomicUsize>);

impl Told {
    fn tell(&self, last_bytes: &[u8]) {
        *self.0.lock().unwrap() = last_bytes.iter().map(|byte| Ipv4Addr::new(127, 0, 0, *byte).into()).collect();
    }
}

impl Lookup for Told {
    async fn lookup(&self, hostname: Arc<str>) -> io::Result<Vec<IpAddr>> {
        assert_eq!(&*hostname, "models.internal");
        self.1.fetch_add(1, Ordering::Relaxed);
        let addresses = self.0.lock().unwrap().clone();
        if addresses.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(addresses) }
    }
}

#[tokio::test]
async fn the_addresses_of_a_name_come_and_go_and_stay_while_there_is_no_answer() {
    let world = world("{fqdn: {hostname: models.internal, port: 9}}");
    let told = Told::default();
    let (reloads, reloaded) = watch::channel(());
    told.tell(&[2, 3]);
    let mut watch = Watch::start(&world, reloaded, told.clone());
    let members = || {
        let members = world.fleet.pools()[0].members();
        members.iter().map(|member| member.cluster.to_string()).collect::<Vec<_>>()
    };
    watch.first_answers().await;
    assert_eq!(members(), ["default/b/127.0.0.2:9", "default/b/127.0.0.3:9"]);
    // Whoever is gone is forgotten.
    let gone: Arc<str> = Arc::from("default/b/127.0.0.2:9");
    (0..2).for_each(|_| world.cooldown.failed(&gone, Instant::now()));
    assert_eq!(world.cooldown.cooling(Instant::now()), 1);
    told.tell(&[3, 4]);
    reloads.send_replace(());
    until("they came and went", || members() == ["default/b/127.0.0.3:9", "default/b/127.0.0.4:9"]).await;
    until("the one that is gone was forgotten", || world.cooldown.cooling(Instant::now()) == 0).await;
    told.tell(&[]);
    let asked = told.1.load(Ordering::Relaxed);
    reloads.send_replace(());
    until("it was asked", || told.1.load(Ordering::Relaxed) > asked).await;
    let failed = || world.telemetry.watch_stats().resolutions().find(|(one, _)| *one == Resolution::Failed).unwrap().1;
    until("there was no answer", || failed() > 0).await;
    assert_eq!(members(), ["default/b/127.0.0.3:9", "default/b/127.0.0.4:9"]);
}

#[tokio::test]
async fn endpoints_that_come_are_scraped_and_those_that_go_are_not() {
    // Two servers at the same port of two addresses, as the replicas behind one name are.
    let first = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let second = TcpListener::bind(("127.0.0.3", first.local_addr().unwrap().port())).await.unwrap();
    let port = first.local_addr().unwrap().port();
    let seen = [first, second].map(|listener| {
        let seen = Arc::new(Seen::default());
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, Arc::new(|_| good(GOOD)), Arc::clone(&noted)));
            }
        });
        seen
    });
    let world = world(&format!("{{fqdn: {{hostname: models.internal, port: {port}}}}}"));
    let told = Told::default();
    let (reloads, reloaded) = watch::channel(());
    told.tell(&[2]);
    let _watch = Watch::start(&world, reloaded, told.clone());
    until("the first was asked", || seen[0].requests() >= 2).await;
    assert_eq!(seen[1].requests(), 0);
    told.tell(&[3]);
    reloads.send_replace(());
    until("the connection to the first was closed", || seen[0].under_way.load(Ordering::Relaxed) == 0).await;
    let asked = seen[0].requests();
    until("the second was asked", || seen[1].requests() >= 4).await;
    assert_eq!(seen[0].requests(), asked);
}

#[tokio::test]
async fn without_scraping_nobody_is_asked() {
    let (address, seen, _server) = server(|_| good(GOOD)).await;
    let world = world(&ip(address));
    let pool = world.fleet.pools().remove(0);
    pool.set_policy(Arc::new(AffinityPolicy { scraping: None, ..AffinityPolicy::default() }));
    let (reloads, reloaded) = watch::channel(());
    let _watch = Watch::start(&world, reloaded, SystemLookup);
    assert_eq!(seen.connections.load(Ordering::Relaxed), 0);
    // From a reload on it is.
    pool.set_policy(Arc::new(AffinityPolicy::default()));
    until("it was asked", || {
        reloads.send_replace(());
        seen.requests() > 0
    })
    .await;
}
