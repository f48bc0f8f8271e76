//! Which commands Redis is sent, and by whom: what `MONITOR` tells, without what scripts do inside.

use std::{
    collections::HashMap,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// After which a Redis that is there would have answered.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Says where the account ends.
const END: &str = "the-end-of-the-account";

/// An account that is under way. Redis keeps it until it is read.
#[derive(Debug)]
pub(super) struct Monitor {
    redis: SocketAddr,
    lines: BufReader<TcpStream>,
}

/// Commands by the connection that they came from, the connections in the order of their first commands.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Account(Vec<(String, u64)>);

impl Monitor {
    /// Begins.
    pub(super) fn start(redis: SocketAddr) -> io::Result<Self> {
        let mut stream = connect(redis)?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        if line.trim() != "+OK" {
            return Err(io::Error::other(format!("Redis does not monitor: {line}")));
        }
        Ok(Self { redis, lines })
    }

    /// Ends, with everything that Redis was sent since the start.
    pub(super) fn end(mut self) -> io::Result<Account> {
        let mut own = connect(self.redis)?;
        own.write_all(format!("ECHO {END}\r\n").as_bytes())?;
        let mut account = Counting::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            if self.lines.read_until(b'\n', &mut line)? == 0 {
                return Err(io::Error::other("Redis ended the account"));
            }
            let text = String::from_utf8_lossy(&line);
            if text.contains(END) {
                return Ok(account.account);
            }
            account.count(&text);
        }
    }
}

impl Account {
    /// Of all connections.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(_, commands)| commands).sum()
    }

    /// Of the one that was the first to send any.
    pub(super) fn of_first_connection(&self) -> u64 {
        self.0.first().map_or(0, |(_, commands)| *commands)
    }
}

#[derive(Debug, Default)]
struct Counting {
    account: Account,
    places: HashMap<String, usize>,
}

impl Counting {
    /// Counts a line such as `+1700000000.123456 [0 127.0.0.1:50000] "EVALSHA" "..."`. Every ten seconds a sidecar says that
    /// it lives, whatever it is asked: that is nothing that a request costs.
    fn count(&mut self, line: &str) {
        if line.contains("\"att1:{sidecars}\"") {
            return;
        }
        let from = line.split_once(" [").and_then(|(_, rest)| rest.split_once("] ")?.0.split_once(' '));
        let Some((_, from)) = from.filter(|(_, from)| *from != "lua") else { return };
        let commands = &mut self.account.0;
        let place = *self.places.entry(from.to_owned()).or_insert_with(|| {
            commands.push((from.to_owned(), 0));
            commands.len() - 1
        });
        if let Some((_, count)) = commands.get_mut(place) {
            *count += 1;
        }
    }
}

fn connect(redis: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(redis)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_by_connection_and_those_of_scripts_are_not() {
        let mut counting = Counting::default();
        for line in [
            "+1700000000.000000 [0 127.0.0.1:50002] \"EVALSHA\" \"0c\" \"1\" \"att1:{sidecars}\" \"7\"\r\n",
            "+1700000000.000001 [0 127.0.0.1:50001] \"EVALSHA\" \"0a\" \"] [\"\r\n",
            "+1700000000.000002 [0 lua] \"GET\" \"att1:{0}:1\"\r\n",
            "+1700000000.000003 [0 127.0.0.1:50002] \"EVALSHA\" \"0b\"\r\n",
            "+1700000000.000004 [0 127.0.0.1:50001] \"EVALSHA\" \"0a\"\r\n",
            "+OK\r\n",
        ] {
            counting.count(line);
        }
        let of = |from: &str, commands| (from.to_owned(), commands);
        let account = counting.account;
        assert_eq!(account, Account(vec![of("127.0.0.1:50001", 2), of("127.0.0.1:50002", 1)]));
        assert_eq!((account.total(), account.of_first_connection()), (3, 2));
    }
}
