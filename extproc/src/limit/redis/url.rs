//! Where Redis is and who we are to it: a URL, and the files that go with it.
//!
//! The forms are those of other clients: `redis+sentinel` as LangChain, Prefect and redis-sentinel-url read it. No message
//! shows what was written between the scheme and the path: a password with a `/` in it looks like a host.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::credentials::{Login, Password};
use super::tls::TlsFiles;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const FORMS: &str = "write one of
  redis://USER:PASSWORD@HOST:PORT/DB
  redis+unix:///PATH?db=DB&user=USER&pass=PASSWORD
  redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB?sentinel_username=USER&sentinel_password=PASSWORD
  redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT
where all but hosts, PATH and SERVICE may be left out; with rediss for TLS; any of / ? # @ : , & % in a password as %XX";

/// The text is no URL of a Redis that we can use, or a file that goes with it is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRedisUrl(String);

impl InvalidRedisUrl {
    fn with_forms(what: &str) -> Self {
        Self(format!("{what}; {FORMS}"))
    }
}

/// A Redis, and who we are to it. It never shows a password.
#[derive(Debug, Clone)]
pub struct RedisTarget {
    pub(super) place: Place,
    pub(super) database: u32,
    pub(super) login: Login,
    /// What the sentinels know us by.
    pub(super) sentinel_login: Login,
    pub(super) tls: Option<TlsFiles>,
}

/// What is kept in files, so that it stands in no command line and can change while the sidecar runs. Each is read anew for
/// every connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedisFiles {
    /// The password.
    pub password: Option<PathBuf>,
    /// The sentinels' password.
    pub sentinel_password: Option<PathBuf>,
    /// Certificates of the authorities that Redis is trusted by, in PEM; the operating system's without.
    pub ca: Option<PathBuf>,
    /// Our own certificate and those that lead to it, in PEM.
    pub certificate: Option<PathBuf>,
    /// Its key, in PEM.
    pub key: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub(super) enum Place {
    Server(Address),
    Sentinels { sentinels: Vec<Address>, service: String },
    Cluster { seeds: Vec<Address> },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl RedisTarget {
    /// Whether the URL has a password in it, Redis's or the sentinels'.
    pub fn has_password(&self) -> bool {
        [&self.login, &self.sentinel_login].iter().any(|login| matches!(login.password, Password::Text(_)))
    }

    /// The hosts and ports that the URL names; none where it names a Unix socket.
    pub fn tcp_addresses(&self) -> Vec<(&str, u16)> {
        let addresses = match &self.place {
            Place::Server(address) => std::slice::from_ref(address),
            Place::Sentinels { sentinels, .. } => sentinels,
            Place::Cluster { seeds } => seeds,
        };
        let addresses = addresses.iter().filter_map(|address| match address {
            Address::Tcp { host, port } => Some((host.as_str(), *port)),
            Address::Unix(_) => None,
        });
        addresses.collect()
    }

    /// With what stands in files.
    ///
    /// # Errors
    /// [`InvalidRedisUrl`] when a file cannot be read or does not hold what it should, or does not go with the URL.
    pub fn with_files(mut self, files: RedisFiles) -> Result<Self, InvalidRedisUrl> {
        for (login, file) in [(&mut self.login, files.password), (&mut self.sentinel_login, files.sentinel_password)] {
            let Some(file) = file else { continue };
            if !matches!(login.password, Password::None) {
                return Err(InvalidRedisUrl("a password stands in the URL and in a file: take one away".to_owned()));
            }
            login.password = Password::File(file);
            login.password.read().map_err(InvalidRedisUrl)?;
        }
        let given = TlsFiles { ca: files.ca, certificate: files.certificate, key: files.key };
        if given.certificate.is_some() != given.key.is_some() {
            return Err(InvalidRedisUrl("a certificate of ours needs its key, and a key its certificate".to_owned()));
        }
        match &mut self.tls {
            Some(tls) => {
                *tls = given;
                tls.read().map_err(InvalidRedisUrl)?;
            }
            None if given.ca.is_some() || given.certificate.is_some() => {
                return Err(InvalidRedisUrl(
                    "certificates are for TLS: write rediss:// instead of redis://".to_owned(),
                ));
            }
            None => {}
        }
        Ok(self)
    }
}

impl FromStr for RedisTarget {
    type Err = InvalidRedisUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = Parts::split(text).map_err(InvalidRedisUrl::with_forms)?;
        parts.target().map_err(|what| InvalidRedisUrl::with_forms(&what))
    }
}

/// A URL's parts as they are written, but for the options.
struct Parts<'u> {
    scheme: &'u str,
    user_info: Option<&'u str>,
    hosts: &'u str,
    path: &'u str,
    options: Vec<(&'u str, String)>,
}

impl<'u> Parts<'u> {
    fn split(text: &'u str) -> Result<Self, &'static str> {
        let (scheme, rest) = text.split_once("://").ok_or("it has no scheme")?;
        if rest.contains('#') {
            return Err(
                "a fragment (#...) is not known here; where Redis's certificate is not trusted, give --redis-ca",
            );
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user_info, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(user_info, hosts)| (Some(user_info), hosts));
        let option = |pair: &'u str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((name, percent_decoded(value)?))
        };
        let options = query.split('&').filter(|pair| !pair.is_empty()).map(option);
        let options =
            options.collect::<Option<_>>().ok_or("an option's % is not followed by two hexadecimal digits")?;
        // A socket's path may have one. Elsewhere it is the end of a password, whose beginning looks like a host and a port.
        if !hosts.is_empty() && (path.contains('@') || query.contains('@')) {
            return Err("there is an @ after the hosts: write it as %40");
        }
        Ok(Self { scheme, user_info, hosts, path, options })
    }

    fn target(mut self) -> Result<RedisTarget, String> {
        let (server, kind) = self.scheme.split_once('+').unwrap_or((self.scheme, ""));
        let tls = match server {
            "redis" | "valkey" => None,
            "rediss" | "valkeys" => Some(TlsFiles::default()),
            "unix" => {
                self.scheme = "redis+unix";
                return self.target();
            }
            _ => return Err("the scheme is none of Redis".to_owned()),
        };
        let mut login = self.login()?;
        let (place, database) = match kind {
            "" => (Place::Server(self.one_host()?), self.path),
            "unix" if tls.is_none() => {
                if !self.hosts.is_empty() || self.path.is_empty() {
                    return Err("a socket has a path and no host".to_owned());
                }
                let path = percent_decoded(self.path).ok_or("a % is not followed by two hexadecimal digits")?;
                (Place::Server(Address::Unix(format!("/{path}").into())), "")
            }
            "sentinel" => {
                let (service, database) = self.path.split_once('/').unwrap_or((self.path, ""));
                let service = percent_decoded(service).ok_or("a % is not followed by two hexadecimal digits")?;
                if service.is_empty() {
                    return Err("the sentinels' name for the service is missing, such as /mymaster".to_owned());
                }
                (Place::Sentinels { sentinels: self.addresses(SENTINEL_PORT)?, service }, database)
            }
            "cluster" => (Place::Cluster { seeds: self.addresses(REDIS_PORT)? }, self.path),
            _ => return Err("the scheme is none of Redis".to_owned()),
        };
        let mut database = number(database)?;
        let mut sentinel_login = Login::default();
        for (name, value) in self.options {
            match (name, &place) {
                ("db", _) => database = number(&value)?,
                ("user", Place::Server(Address::Unix(_))) => login.user = Some(value),
                ("pass", Place::Server(Address::Unix(_))) => login.password = Password::Text(value),
                ("sentinel_username", Place::Sentinels { .. }) => sentinel_login.user = Some(value),
                ("sentinel_password", Place::Sentinels { .. }) => sentinel_login.password = Password::Text(value),
                // Which protocol is spoken is our own affair; the option is known from other clients.
                ("protocol", _) => {}
                // It is not shown: it may be what follows an & in a password.
                _ => return Err("an option is not known there".to_owned()),
            }
        }
        if database != 0 && matches!(place, Place::Cluster { .. }) {
            return Err("a cluster has database 0 alone".to_owned());
        }
        Ok(RedisTarget { place, database, login, sentinel_login, tls })
    }

    fn login(&self) -> Result<Login, String> {
        let Some(user_info) = self.user_info else {
            return Ok(Login::default());
        };
        let (user, password) =
            user_info.split_once(':').map_or((user_info, None), |(user, password)| (user, Some(password)));
        let decoded = |text| percent_decoded(text).ok_or("a % is not followed by two hexadecimal digits");
        let password = password.filter(|password| !password.is_empty()).map(decoded).transpose()?;
        Ok(Login {
            user: Some(decoded(user)?).filter(|user| !user.is_empty()),
            password: password.map_or(Password::None, Password::Text),
        })
    }

    fn one_host(&self) -> Result<Address, String> {
        match self.addresses(REDIS_PORT)?.as_slice() {
            [address] => Ok(address.clone()),
            _ => Err("several hosts are for sentinels and clusters".to_owned()),
        }
    }

    fn addresses(&self, port: u16) -> Result<Vec<Address>, String> {
        self.hosts.split(',').map(|host| address(host, port)).collect()
    }
}

fn address(text: &str, default_port: u16) -> Result<Address, String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(text) => {
            let (host, rest) = text.split_once(']').ok_or("an IPv6 address is not closed by ]")?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or("a host is none")?) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err("a host is missing".to_owned());
    }
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or("a port is no number from 1 to 65535")?,
        None => default_port,
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

fn number(database: &str) -> Result<u32, String> {
    match database.trim_matches('/') {
        "" => Ok(0),
        digits => digits.parse().map_err(|_| "the database is no number".to_owned()),
    }
}

/// None where a `%` is not followed by two digits, or what comes out is no UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn target(url: &str) -> RedisTarget {
        url.parse().unwrap()
    }

    fn shown(url: &str) -> String {
        let RedisTarget { place, database, login, tls, .. } = target(url);
        let addresses = |addresses: &[Address]| addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(" ");
        let place = match place {
            Place::Server(address) => address.to_string(),
            Place::Sentinels { sentinels, service } => format!("{service} of {}", addresses(&sentinels)),
            Place::Cluster { seeds } => format!("cluster {}", addresses(&seeds)),
        };
        let user = login.user.unwrap_or_default();
        let password = match login.password {
            Password::Text(password) => password,
            Password::None | Password::File(_) => String::new(),
        };
        format!("{place} db {database} as {user}:{password}{}", if tls.is_some() { " by TLS" } else { "" })
    }

    #[test]
    fn a_url_is_read_in_each_of_its_forms() {
        for (url, expected) in [
            ("redis://localhost", "localhost:6379 db 0 as :"),
            ("redis://:secret@10.0.0.1:7000/3", "10.0.0.1:7000 db 3 as :secret"),
            ("rediss://app:p%40ss%2Fword@cache.example:6380/", "cache.example:6380 db 0 as app:p@ss/word by TLS"),
            ("valkey://[::1]:1/2", "[::1]:1 db 2 as :"),
            ("redis+unix:///run/redis.sock?db=4&user=app&pass=a%26b", "/run/redis.sock db 4 as app:a&b"),
            ("unix:///run/redis.sock", "/run/redis.sock db 0 as :"),
            ("redis+sentinel://app:pw@a,b:1,[::2]/main/5", "main of a:26379 b:1 [::2]:26379 db 5 as app:pw"),
            ("rediss+sentinel://a/main", "main of a:26379 db 0 as : by TLS"),
            ("redis+cluster://:pw@a:1,b", "cluster a:1 b:6379 db 0 as :pw"),
            ("redis://a?protocol=resp3&db=1", "a:6379 db 1 as :"),
            ("redis+unix:///run/@app/redis.sock?pass=a@b", "/run/@app/redis.sock db 0 as :a@b"),
            ("redis://app%3A1:p%25%3A%23%3F%2C%C3%A4@a", "a:6379 db 0 as app:1:p%:#?,ä"),
            ("redis://:a:b@c", "c:6379 db 0 as :a:b"),
            ("redis://:a@b@c", "c:6379 db 0 as :a@b"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
        let sentinel = target("redis+sentinel://a/main?sentinel_username=s&sentinel_password=p").sentinel_login;
        assert_eq!((sentinel.user.as_deref(), sentinel.password.read()), (Some("s"), Ok(Some("p".to_owned()))));
    }

    #[test]
    fn a_wrong_url_is_refused_with_the_forms_and_without_its_password() {
        for url in [
            "",
            "localhost",
            "localhost:6379",
            "http://secret@localhost",
            "redis://",
            "redis://:secret@",
            "redis://:sec/ret@localhost",
            "redis://:sec?ret@localhost",
            "redis://:sec#ret@localhost",
            "redis://:secret%zz@localhost",
            "redis://localhost:secret",
            "redis://localhost:0",
            "redis://localhost/secret",
            "redis://secret,localhost",
            "rediss://localhost#insecure",
            "redis://[::1",
            "redis+unix://secret/path",
            "rediss+unix:///path",
            "redis+unix://",
            "redis+sentinel://a",
            "redis+cluster://a/1",
            "redis+secret://a",
            "redis://a?secret",
            "redis://user:6379?secret@localhost",
            "redis://user:6379?secret=1@localhost",
            "redis://user:6379/3?secret=1@localhost",
            "redis+sentinel://user:6379/secret@localhost/main",
            "redis+sentinel://user:6379/secret@localhost",
            "redis+sentinel://a/main?sentinel_password=x&secret",
            "redis+unix:///path?pass=x&secret",
            "redis+cluster://user:6379?secret@localhost",
        ] {
            let error = url.parse::<RedisTarget>().unwrap_err().to_string();
            assert!(error.contains("redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB"), "{error}");
            assert!(!error.contains("secret") && !error.contains("sec/ret"), "{error}");
        }
    }

    #[test]
    fn passwords_are_never_shown() {
        let target = target("redis+sentinel://app:secret@a/main?sentinel_password=hidden");
        let shown = format!("{target:?}");
        assert!(shown.contains("app") && !shown.contains("secret") && !shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn files_must_be_there_and_go_with_the_url() {
        let directory = tempfile::tempdir().unwrap();
        let (password, text) = (directory.path().join("password"), directory.path().join("text"));
        fs::write(&password, "secret\n").unwrap();
        fs::write(&text, "no certificate").unwrap();
        let with = |url: &str, files| target(url).with_files(files).map_err(|error| error.to_string());
        let read = |target: RedisTarget| target.login.password.read();
        let file = || RedisFiles { password: Some(password.clone()), ..RedisFiles::default() };
        assert_eq!(with("redis://app@a", file()).map(read), Ok(Ok(Some("secret".to_owned()))));
        assert!(with("redis://:other@a", file()).unwrap_err().contains("take one away"));
        let missing = RedisFiles { password: Some(directory.path().join("none")), ..RedisFiles::default() };
        assert!(with("redis://a", missing).unwrap_err().contains("none: "));
        let ca = |path: &PathBuf| RedisFiles { ca: Some(path.clone()), ..RedisFiles::default() };
        assert!(with("redis://a", ca(&text)).unwrap_err().contains("rediss://"));
        assert!(with("rediss://a", ca(&text)).unwrap_err().contains("text: "));
        let half = RedisFiles { key: Some(text), ..RedisFiles::default() };
        assert!(with("rediss://a", half).unwrap_err().contains("certificate"));
    }
}
