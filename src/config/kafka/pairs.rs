//! Properties of librdkafka that do not go together, although it takes each of them. It would connect
//! without the password or the certificate that somebody meant to use, or fail at every poll.

use std::collections::BTreeMap;

use secrecy::ExposeSecret;

use super::properties::Given;
use crate::config::Invalid;

type Rule = fn(&Properties<'_>) -> Result<(), Invalid>;

const RULES: [Rule; 9] = [
    sasl_is_spoken,
    tls_is_spoken,
    nothing_has_two_names,
    mechanism_is_named,
    mechanism_is_known,
    password_is_given,
    ticket_can_be_had,
    token_can_be_had,
    certificate_has_its_key,
];

/// Refuses what breaks one of the rules.
pub(super) fn check(given: &BTreeMap<String, Given>) -> Result<(), Invalid> {
    let properties = Properties(given);
    RULES.iter().try_for_each(|rule| rule(&properties))
}

struct Properties<'a>(&'a BTreeMap<String, Given>);

impl<'a> Properties<'a> {
    /// What is given; an empty value is for librdkafka as good as none.
    fn iter(&self) -> impl Iterator<Item = (&'a str, &'a Given)> {
        let given = self.0.iter().map(|(name, given)| (name.as_str(), given));
        given.filter(|(_, given)| !given.value.expose_secret().trim().is_empty())
    }

    /// The first of these that is given.
    fn any(&self, names: &[&str]) -> Option<(&'a str, &'a Given)> {
        self.iter().find(|(name, _)| names.contains(name))
    }

    fn starting(&self, prefixes: &[&str]) -> Option<(&'a str, &'a Given)> {
        self.iter()
            .find(|(name, _)| prefixes.iter().any(|prefix| name.starts_with(prefix)))
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.any(&[name])
            .map(|(_, given)| given.value.expose_secret().trim())
    }

    /// Whether the property has one of these values, for which librdkafka minds no case.
    fn is(&self, name: &str, values: &[&str]) -> bool {
        let is = |text: &str| values.iter().any(|value| text.eq_ignore_ascii_case(value));
        self.text(name).is_some_and(is)
    }

    /// In small letters, as librdkafka documents it.
    fn protocol(&self) -> String {
        let given = self.text("security.protocol").unwrap_or("plaintext");
        given.to_ascii_lowercase()
    }

    fn speaks_sasl(&self) -> bool {
        self.protocol().starts_with("sasl_")
    }

    fn mechanism(&self) -> Option<(&'a str, &'a Given)> {
        self.any(&["sasl.mechanism", "sasl.mechanisms"])
    }

    /// The mechanism, when it is one of these.
    fn mechanism_of(&self, wanted: &[&str]) -> Option<&'a Given> {
        let (_, given) = self.mechanism().filter(|_| self.speaks_sasl())?;
        let is_wanted = wanted.contains(&given.value.expose_secret().trim());
        is_wanted.then_some(given)
    }
}

fn refuse(at: &Given, message: impl Into<String>) -> Result<(), Invalid> {
    Err(Invalid {
        at: at.at,
        message: message.into(),
    })
}

// ---- security.protocol ----

fn sasl_is_spoken(properties: &Properties<'_>) -> Result<(), Invalid> {
    let unused = properties.starting(&["sasl.", "enable.sasl."]);
    let Some((name, given)) = unused.filter(|_| !properties.speaks_sasl()) else {
        return Ok(());
    };
    let (protocol, mend) = match &*properties.protocol() {
        "ssl" => ("ssl", "SASL_SSL"),
        _ => (
            "plaintext, the default",
            "SASL_SSL, or SASL_PLAINTEXT without TLS",
        ),
    };
    let message = format!(
        "`{name}` does nothing with security.protocol {protocol}, so that nobody would log in: \
         write security.protocol: {mend}"
    );
    refuse(given, message)
}

fn tls_is_spoken(properties: &Properties<'_>) -> Result<(), Invalid> {
    let (protocol, mend) = match &*properties.protocol() {
        "plaintext" => ("plaintext, the default", "SSL"),
        "sasl_plaintext" => ("sasl_plaintext", "SASL_SSL"),
        _ => return Ok(()),
    };
    let Some((name, given)) = properties.starting(&["ssl.", "enable.ssl."]) else {
        return Ok(());
    };
    let message = format!(
        "`{name}` does nothing with security.protocol {protocol}, so that nothing would be \
         encrypted: write security.protocol: {mend}"
    );
    refuse(given, message)
}

// ---- sasl.mechanism ----

const CLIENT_ID: [&str; 2] = [
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.id",
];
const CLIENT_SECRET: [&str; 2] = [
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
];

fn nothing_has_two_names(properties: &Properties<'_>) -> Result<(), Invalid> {
    let mechanism = ["sasl.mechanism", "sasl.mechanisms"];
    for [name, other] in [mechanism, CLIENT_ID, CLIENT_SECRET] {
        if let Some((_, given)) = properties.any(&[other])
            && properties.any(&[name]).is_some()
        {
            let message = format!("`{other}` is another name of `{name}`: keep one of them");
            return refuse(given, message);
        }
    }
    Ok(())
}

fn mechanism_is_named(properties: &Properties<'_>) -> Result<(), Invalid> {
    if properties.mechanism().is_some() || !properties.speaks_sasl() {
        return Ok(());
    }
    let password = properties.any(&["sasl.username", "sasl.password"]);
    let token = properties.starting(&["sasl.oauthbearer.", "enable.sasl.oauthbearer."]);
    let (name, given, mend) = match (password, token) {
        (Some((name, given)), _) => (name, given, "SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN"),
        (None, Some((name, given))) => (name, given, "OAUTHBEARER"),
        // Then GSSAPI may well be meant.
        (None, None) => return Ok(()),
    };
    let message = format!(
        "`{name}` does nothing with GSSAPI, which librdkafka takes when sasl.mechanism is left out: \
         write sasl.mechanism: {mend}"
    );
    refuse(given, message)
}

fn mechanism_is_known(properties: &Properties<'_>) -> Result<(), Invalid> {
    const KNOWN: [&str; 5] = [
        "GSSAPI",
        "PLAIN",
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
        "OAUTHBEARER",
    ];
    match properties.mechanism() {
        // Here librdkafka does mind the case.
        Some((_, given)) if properties.mechanism_of(&KNOWN).is_none() => {
            let known = KNOWN.join(", ");
            refuse(
                given,
                format!("librdkafka knows no such mechanism: write one of {known}"),
            )
        }
        _ => Ok(()),
    }
}

fn password_is_given(properties: &Properties<'_>) -> Result<(), Invalid> {
    let Some(mechanism) = properties.mechanism_of(&["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    else {
        return Ok(());
    };
    let wanted = [
        ("sasl.username", "add it"),
        (
            "sasl.password",
            "add it, or sasl.password_file with the name of a file that holds it",
        ),
    ];
    match wanted
        .iter()
        .find(|(name, _)| properties.any(&[name]).is_none())
    {
        Some((name, mend)) => refuse(
            mechanism,
            format!("this mechanism needs `{name}`, which is missing: {mend}"),
        ),
        None => Ok(()),
    }
}

fn ticket_can_be_had(properties: &Properties<'_>) -> Result<(), Invalid> {
    let protocol = properties.any(&["security.protocol"]);
    let Some((_, at)) = properties.mechanism().or(protocol) else {
        return Ok(());
    };
    let other = properties.mechanism().is_some() && properties.mechanism_of(&["GSSAPI"]).is_none();
    // Without these librdkafka runs kinit with the keytab.
    let enough = [
        "sasl.kerberos.keytab",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
    ];
    if !properties.speaks_sasl() || other || properties.any(&enough).is_some() {
        return Ok(());
    }
    let message = "GSSAPI, which is the default of sasl.mechanism, needs `sasl.kerberos.keytab`, which \
                   is missing: add it, or write another sasl.mechanism";
    refuse(at, message)
}

// ---- OAUTHBEARER ----

fn token_can_be_had(properties: &Properties<'_>) -> Result<(), Invalid> {
    let Some(mechanism) = properties.mechanism_of(&["OAUTHBEARER"]) else {
        return Ok(());
    };
    let unsecured = "enable.sasl.oauthbearer.unsecure.jwt";
    let oidc = properties.is("sasl.oauthbearer.method", &["oidc"]);
    match (oidc, properties.is(unsecured, &["true", "t", "1"])) {
        (true, false) => oidc_is_complete(properties, mechanism),
        (false, true) => Ok(()),
        (true, true) => refuse(
            mechanism,
            format!("`{unsecured}` excludes `sasl.oauthbearer.method: oidc`: keep one of them"),
        ),
        (false, false) => refuse(
            mechanism,
            format!(
                "nothing here gives OAUTHBEARER a token: write sasl.oauthbearer.method: oidc and what \
                 belongs to it, or, for trials, {unsecured}: true"
            ),
        ),
    }
}

/// What librdkafka wants of a client that gets its token by OpenID Connect.
fn oidc_is_complete(properties: &Properties<'_>, mechanism: &Given) -> Result<(), Invalid> {
    const ENDPOINT: &[&str] = &["sasl.oauthbearer.token.endpoint.url"];
    const ASSERTION: &[&str] = &[
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.private.key.pem",
    ];
    let azure = properties.is(
        "sasl.oauthbearer.metadata.authentication.type",
        &["azure_imds"],
    );
    let by_assertion = properties.is(
        "sasl.oauthbearer.grant.type",
        &["urn:ietf:params:oauth:grant-type:jwt-bearer"],
    );
    let query = properties.text("sasl.oauthbearer.config");
    let wanted: &[&[&str]] = match (azure, by_assertion) {
        // Azure's endpoint is known, if only it is told what to ask.
        (true, _) if query.is_some_and(|query| query.contains("query=")) => &[],
        (true, _) => &[ENDPOINT],
        (false, true) => &[ENDPOINT, ASSERTION],
        (false, false) => &[ENDPOINT, &CLIENT_ID, &CLIENT_SECRET],
    };
    match wanted.iter().find(|names| properties.any(names).is_none()) {
        Some(names) => {
            let names = names.join("` or `");
            let message = format!("oidc needs `{names}`, which is missing: add it");
            refuse(mechanism, message)
        }
        None => Ok(()),
    }
}

// ---- Certificates ----

fn certificate_has_its_key(properties: &Properties<'_>) -> Result<(), Invalid> {
    let given = |names| properties.any(names);
    // A store holds both, an engine may hold the key.
    if let Some((name, store)) = given(&["ssl.keystore.location"])
        && given(&["ssl.keystore.password"]).is_none()
    {
        let message = format!("`{name}` stands without `ssl.keystore.password`: give both");
        return refuse(store, message);
    }
    if given(&["ssl.keystore.location", "ssl.engine.location"]).is_some() {
        return Ok(());
    }
    let certificate = given(&["ssl.certificate.location", "ssl.certificate.pem"]);
    let key = given(&["ssl.key.location", "ssl.key.pem"]);
    match (certificate, key) {
        (Some((name, at)), None) => refuse(
            at,
            format!("`{name}` stands without a key: add ssl.key.location or ssl.key.pem"),
        ),
        (None, Some((name, at))) => refuse(
            at,
            format!(
                "`{name}` stands without a certificate: add ssl.certificate.location or \
                 ssl.certificate.pem"
            ),
        ),
        _ => Ok(()),
    }
}
