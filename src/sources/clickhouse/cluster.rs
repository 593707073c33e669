//! What a cluster is made of: whom to ask for the log of each replica, and whether each row is
//! asked for once.

use std::sync::Arc;

use tokio::time::Instant;

use super::{ClickHouse, Row, sql};
use crate::error::{Error, Reason};

/// A cluster, as `system.clusters` lists it.
struct Members {
    cluster: String,
    /// Host and port of each replica, sorted.
    addresses: String,
    /// The most replicas that a shard has.
    replicas: u64,
}

impl Members {
    fn of(row: &Row) -> Result<Self, Error> {
        Ok(Members {
            cluster: row.text("name")?,
            addresses: row.text("addresses")?,
            replicas: row.count("replicas")?,
        })
    }
}

impl ClickHouse {
    /// The table function and the cluster that ask every replica of `cluster`, each once.
    ///
    /// Old servers have no `clusterAllReplicas`, and `cluster` asks one replica of each
    /// shard, whichever it likes: a part of the truth, and another one each time. There, a cluster
    /// of the same servers in which each is a shard of its own does the same.
    ///
    /// # Errors
    /// `unsupported` when there is no such cluster, and those of [`rows`](Self::rows).
    pub(super) async fn ask_every_replica(
        self: &Arc<Self>,
        cluster: &str,
        deadline: Instant,
    ) -> Result<(&'static str, String), Error> {
        let query = "SELECT count() AS found FROM system.table_functions \
                     WHERE name = 'clusterAllReplicas'";
        if self.row(query, deadline).await?.count("found")? > 0 {
            return Ok(("clusterAllReplicas", cluster.to_owned()));
        }
        let query = "SELECT cluster AS name, max(replica_num) AS replicas, toString(arraySort(\
                     groupArray(concat(host_address, ':', toString(port))))) AS addresses \
                     FROM system.clusters GROUP BY cluster ORDER BY cluster";
        let rows = self.rows(query, deadline).await?;
        let all: Vec<_> = rows.iter().map(Members::of).collect::<Result<_, _>>()?;
        every_replica(cluster, &all).map(|cluster| ("cluster", cluster))
    }

    /// Whether replicas of one table stand in the cluster as shards, so that each row would be read
    /// once from each of them.
    ///
    /// # Errors
    /// Those of [`rows`](Self::rows).
    pub(super) async fn reads_rows_twice(
        self: &Arc<Self>,
        cluster: &str,
        database: &str,
        table: &str,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let query = format!(
            "SELECT count() AS shards, uniqExact(zookeeper_path) AS different \
             FROM cluster({}, system, replicas) WHERE database = {} AND table = {}",
            sql::string(cluster),
            sql::string(database),
            sql::string(table)
        );
        let row = self.row(&query, deadline).await?;
        Ok(row.count("shards")? > row.count("different")?)
    }
}

/// The cluster whose shards are the replicas of this one.
fn every_replica(cluster: &str, all: &[Members]) -> Result<String, Error> {
    let Some(asked) = all.iter().find(|members| members.cluster == cluster) else {
        // The server has better words for a cluster that it does not know.
        return Ok(cluster.to_owned());
    };
    let serves = |members: &&Members| members.replicas == 1 && members.addresses == asked.addresses;
    let found = if serves(&asked) {
        Some(asked)
    } else {
        all.iter().find(serves)
    };
    found.map(|members| members.cluster.clone()).ok_or_else(|| {
        let message = format!(
            "this server can ask one replica of each shard of the cluster {cluster}, and each has a \
             part_log of its own: add a cluster to remote_servers in which each replica of \
             {cluster} is a shard; it is found by itself"
        );
        Error::new(Reason::Unsupported, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(cluster: &str, addresses: &str, replicas: u64) -> Members {
        Members {
            cluster: cluster.into(),
            addresses: addresses.into(),
            replicas,
        }
    }

    #[test]
    fn every_replica_is_asked_by_the_cluster_in_which_each_is_a_shard() {
        let all = [
            members("fewer", "[a, b]", 1),
            members("flat", "[a, b, c, d]", 1),
            members("grid", "[a, b, c, d]", 2),
            members("other", "[e, f]", 2),
        ];
        let asked = |cluster| every_replica(cluster, &all).map_err(|error| error.reason());
        assert_eq!(asked("grid"), Ok("flat".into()));
        assert_eq!(asked("flat"), Ok("flat".into()));
        assert_eq!(asked("fewer"), Ok("fewer".into()));
        assert_eq!(asked("other"), Err(Reason::Unsupported));
        assert_eq!(asked("unknown"), Ok("unknown".into()), "the server says so");
    }
}
