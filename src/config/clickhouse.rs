//! A ClickHouse source: how to reach the server, its limits, and the checks that it answers.

use std::collections::BTreeSet;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_saphyr::Spanned;
use url::Url;

use super::values::{Bytes, Secret, Text};
use super::{Defaults, Invalid, Names, read_secret};
use crate::checks::{summary, table};

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
    pub tables: Vec<table::Config>,
    pub summaries: Vec<summary::Config>,
}

/// What a query may cost; the server enforces it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    pub max_threads: u64,
    pub max_memory_usage: Bytes,
    pub max_rows_to_read: u64,
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
    pub server_name: Option<String>,
    pub insecure_skip_verify: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawTls {
    ca_file: Option<Text>,
    cert_file: Option<Spanned<Text>>,
    key_file: Option<Spanned<Text>>,
    server_name: Option<Text>,
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
                    "cert_file without key_file: give both",
                ));
            }
            (None, Some(alone)) => {
                return Err(Invalid::new(
                    &alone,
                    "key_file without cert_file: give both",
                ));
            }
        };
        Ok(Tls {
            ca_file: given(self.ca_file).map(PathBuf::from),
            client,
            server_name: given(self.server_name),
            insecure_skip_verify: self.insecure_skip_verify,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Spanned<Text>,
    url: Spanned<Secret>,
    user: Option<Spanned<Text>>,
    password: Option<Secret>,
    password_file: Option<Spanned<Text>>,
    tls: Option<Spanned<RawTls>>,
    cluster: Option<Text>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    tables: Vec<table::RawConfig>,
    #[serde(default)]
    summaries: Vec<summary::RawConfig>,
}

impl Raw {
    pub(super) fn validate(
        self,
        defaults: &Defaults,
        names: &mut Names,
    ) -> Result<ClickHouseSource, Invalid> {
        let name = names.claim(self.name)?;
        let place = parse_url(&self.url)?;
        let password = password(self.password, self.password_file)?;
        let (user, password) = credentials(&self.url, place.user, self.user, password)?;
        let tls = match self.tls {
            Some(tls) if place.url.scheme() != "https" => {
                let message = "tls is set, but the url is not https: change one of them";
                return Err(Invalid::new(&tls, message));
            }
            Some(tls) => tls.value.validate()?,
            None => Tls::default(),
        };
        let mut seen = BTreeSet::new();
        let tables = (self.tables.into_iter())
            .map(|raw| raw.validate(defaults, &mut seen))
            .collect::<Result<_, _>>()?;
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
            tables,
            summaries,
        })
    }
}

/// A password that is given in place or by a file, but not by both.
fn password(
    in_place: Option<Secret>,
    file: Option<Spanned<Text>>,
) -> Result<Option<SecretString>, Invalid> {
    match (in_place, file) {
        (Some(_), Some(file)) => {
            let message = "both password and password_file are given: keep one";
            Err(Invalid::new(&file, message))
        }
        (Some(secret), None) => Ok(Some(secret.0)),
        (None, Some(file)) => read_secret(&file.value.0, &file).map(Some),
        (None, None) => Ok(None),
    }
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
        .ok_or_else(|| Invalid::new(raw, format!("this is no URL of a server: {MEND}")))?;
    if url.query().is_some() || url.fragment().is_some() {
        let message = "the url has a query or a fragment: write user and password_file instead";
        return Err(Invalid::new(raw, message));
    }
    let decode = |part: &str| match percent_decode_str(part).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Invalid::new(
            raw,
            "the user in the url is not UTF-8 once decoded",
        )),
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
        None => (user.map(|u| u.value.0), password),
        Some(_) if user.is_some() || password.is_some() => {
            let message = "user and password stand both in the url and beside it: keep one";
            return Err(Invalid::new(url, message));
        }
        Some((user, password)) => (Some(user).filter(|u| !u.is_empty()), password),
    };
    // They travel as HTTP headers, which can't hold these.
    let unfit = |text: &str| text.chars().any(char::is_control);
    let secret = password.as_ref().map(ExposeSecret::expose_secret);
    if user.as_deref().is_some_and(unfit) || secret.is_some_and(unfit) {
        let message = "user or password has a newline or another control character in it";
        return Err(Invalid::new(url, message));
    }
    Ok((user, password))
}
