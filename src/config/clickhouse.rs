//! A ClickHouse source: how to reach the server, its limits, and the checks that it answers.

use std::collections::BTreeSet;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use serde::de::{self, Deserialize, Deserializer};
use serde_saphyr::Spanned;
use url::Url;

use super::values::{Bytes, Secret, Text};
use super::{Defaults, Invalid, SourceNames, read_secret};
use crate::checks::{part_log, summary, table};

/// A ClickHouse server, or a cluster behind one.
#[derive(Debug)]
pub(crate) struct ClickHouseSource {
    pub name: String,
    /// Without user, password, query and fragment.
    pub url: Url,
    pub user: Option<String>,
    pub password: Option<SecretString>,
    pub tls: Tls,
    /// The cluster whose replicas are all asked; the one server when empty.
    pub cluster: Option<String>,
    pub limits: Limits,
    /// Absent where it is switched off.
    pub part_log: Option<part_log::Config>,
    pub tables: Vec<table::Config>,
    pub summaries: Vec<summary::Config>,
}

/// What a query may cost; the server enforces it.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    #[serde(deserialize_with = "above_zero")]
    pub max_threads: u64,
    pub max_memory_usage: Bytes,
    #[serde(deserialize_with = "above_zero")]
    pub max_rows_to_read: u64,
}

/// ClickHouse takes 0 for "no limit".
fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match u64::deserialize(deserializer)? {
        0 => Err(de::Error::custom(
            "0 would be no limit at all: write a number above 0",
        )),
        limit => Ok(limit),
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_threads: 2,
            max_memory_usage: Bytes(2 << 30),
            max_rows_to_read: 500_000_000,
        }
    }
}

/// How the server proves who it is, and we who we are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    /// The system's certificate authorities when absent.
    pub ca_file: Option<PathBuf>,
    /// Our certificate chain and its key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name that the certificate must bear, when it is not the host of the URL.
    pub server_name: Option<ServerName<'static>>,
    pub insecure_skip_verify: bool,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawTls {
    ca_file: Option<Text>,
    cert_file: Option<Spanned<Text>>,
    key_file: Option<Spanned<Text>>,
    server_name: Option<Spanned<Text>>,
    insecure_skip_verify: bool,
}

impl RawTls {
    fn validate(self) -> Result<Tls, Invalid> {
        // An empty text means "not given", so that a reference file can list every key.
        let given = |text: Option<Text>| text.map(|t| t.0).filter(|t| !t.is_empty());
        let located = |text: Option<Spanned<Text>>| text.filter(|t| !t.value.0.is_empty());
        let client = match (located(self.cert_file), located(self.key_file)) {
            (Some(cert), Some(key)) => Some((cert.value.0.into(), key.value.0.into())),
            (None, None) => None,
            (Some(alone), None) => {
                return Err(Invalid::new(
                    &alone,
                    "cert_file stands without key_file: give both",
                ));
            }
            (None, Some(alone)) => {
                return Err(Invalid::new(
                    &alone,
                    "key_file stands without cert_file: give both",
                ));
            }
        };
        Ok(Tls {
            ca_file: given(self.ca_file).map(PathBuf::from),
            client,
            server_name: located(self.server_name).map(server_name).transpose()?,
            insecure_skip_verify: self.insecure_skip_verify,
        })
    }
}

fn server_name(raw: Spanned<Text>) -> Result<ServerName<'static>, Invalid> {
    ServerName::try_from(raw.value.0.clone()).map_err(|_| {
        let message = "this is no name that a certificate can bear: write it like host.example";
        Invalid::new(&raw, message)
    })
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Spanned<Text>,
    url: Spanned<Secret>,
    user: Option<Spanned<Text>>,
    password: Option<Spanned<Secret>>,
    password_file: Option<Spanned<Text>>,
    tls: Option<Spanned<RawTls>>,
    cluster: Option<Text>,
    #[serde(default)]
    limits: Limits,
    part_log: Option<part_log::RawConfig>,
    #[serde(default)]
    tables: Vec<table::RawConfig>,
    #[serde(default)]
    summaries: Vec<summary::RawConfig>,
}

impl Raw {
    pub(super) fn validate(
        self,
        defaults: &Defaults,
        names: &mut SourceNames,
    ) -> Result<ClickHouseSource, Invalid> {
        let name = names.claim(self.name)?;
        let place = parse_url(&self.url)?;
        let password = password(self.password, self.password_file)?;
        let (user, password) = credentials(&self.url, place.user, self.user, password)?;
        let tls = match self.tls {
            Some(tls) if place.url.scheme() != "https" => {
                let message = "tls is set, but the url is not https: write https, or take tls out";
                return Err(Invalid::new(&tls, message));
            }
            Some(tls) => tls.value.validate()?,
            None => Tls::default(),
        };
        let mut seen = BTreeSet::new();
        let mut tables = (self.tables.into_iter())
            .map(|raw| raw.validate(defaults, &mut seen))
            .collect::<Result<Vec<_>, _>>()?;
        table::tell_apart(&mut tables);
        let mut seen = BTreeSet::new();
        let summaries = (self.summaries.into_iter())
            .map(|raw| raw.validate(defaults, &mut seen))
            .collect::<Result<_, _>>()?;
        Ok(ClickHouseSource {
            name,
            url: place.url,
            user,
            password,
            tls,
            cluster: self.cluster.map(|c| c.0).filter(|c| !c.is_empty()),
            limits: self.limits,
            part_log: self.part_log.unwrap_or_default().validate(defaults)?,
            tables,
            summaries,
        })
    }
}

/// A password that is given in place or by a file, but not by both.
fn password(
    in_place: Option<Spanned<Secret>>,
    file: Option<Spanned<Text>>,
) -> Result<Option<SecretString>, Invalid> {
    let password = match (in_place, file) {
        (Some(_), Some(file)) => {
            let message = "both password and password_file are given: keep one";
            return Err(Invalid::new(&file, message));
        }
        (Some(secret), None) => {
            must_fit_a_header(secret.value.0.expose_secret(), &secret)?;
            secret.value.0
        }
        (None, Some(file)) => {
            let secret = read_secret(&file.value.0, &file)?;
            must_fit_a_header(secret.expose_secret(), &file)?;
            secret
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(password))
}

/// User and password travel as HTTP headers.
fn must_fit_a_header<T>(text: &str, at: &Spanned<T>) -> Result<(), Invalid> {
    if text.chars().any(char::is_control) {
        let message = "what is given here has a line break or another control character in it, \
                       which HTTP can't carry: take it out";
        return Err(Invalid::new(at, message));
    }
    Ok(())
}

struct Place {
    url: Url,
    /// User and password that stood in the URL, decoded once.
    user: Option<(String, Option<SecretString>)>,
}

/// Takes a URL apart. No message repeats it, since a password may stand in it anywhere.
fn parse_url(raw: &Spanned<Secret>) -> Result<Place, Invalid> {
    const MEND: &str = "write it like http://host:8123 or https://host:8443";
    let text = raw.value.0.expose_secret();
    let mut url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some())
        .ok_or_else(|| Invalid::new(raw, format!("this is no address of a server: {MEND}")))?;
    if url.query().is_some() || url.fragment().is_some() {
        let message = "the url has a ? or a # in it: leave out what follows, and give user and \
                       password_file beside it";
        return Err(Invalid::new(raw, message));
    }
    let decode = |part: &str| {
        let text = percent_decode_str(part).decode_utf8().map_err(|_| {
            let message = "user or password in the url is not UTF-8: mend its %-codes, or give \
                           them beside the url";
            Invalid::new(raw, message)
        })?;
        must_fit_a_header(&text, raw)?;
        Ok(text.into_owned())
    };
    let user = match (url.username(), url.password()) {
        ("", None) => None,
        (user, password) => {
            let password = password.map(&decode).transpose()?.map(SecretString::from);
            Some((decode(user)?, password))
        }
    };
    // Both can't fail on a URL that has a host.
    let _ = (url.set_username(""), url.set_password(None));
    Ok(Place { url, user })
}

type Credentials = (Option<String>, Option<SecretString>);

fn credentials(
    url: &Spanned<Secret>,
    in_url: Option<(String, Option<SecretString>)>,
    user: Option<Spanned<Text>>,
    password: Option<SecretString>,
) -> Result<Credentials, Invalid> {
    let (user, password) = match in_url {
        Some(_) if user.is_some() || password.is_some() => {
            let message = "user and password stand both in the url and beside it: keep one";
            return Err(Invalid::new(url, message));
        }
        Some((user, password)) => (user, password),
        None => match user {
            Some(user) => {
                must_fit_a_header(&user.value.0, &user)?;
                (user.value.0, password)
            }
            None => (String::new(), password),
        },
    };
    Ok((Some(user).filter(|user| !user.is_empty()), password))
}
