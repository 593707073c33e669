"""An HTTP server in front of the ClickHouse engine that the PyPI packages chdb and chdb-core hold.

It speaks as much of ClickHouse's HTTP interface as a client of ours needs: query in the body or in the URL,
settings in the URL, users and passwords, ClickHouse's error codes and the HTTP status that goes with each.
There is one connection to the engine, so queries run one after another. Run by `dev/up`, in a virtual
environment that has the engine; standard library only apart from it.
"""

import argparse
import base64
import json
import os
import re
import signal
import tempfile
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import chdb

# URL parameters that are not settings.
RESERVED = {
    "query", "database", "default_format", "query_id", "user", "password", "quota_key", "role", "stacktrace",
    "wait_end_of_query", "buffer_size", "compress", "decompress", "session_id", "session_timeout", "session_check",
    "client_protocol_version", "close_session", "http_write_exception_in_output_format", "enable_http_compression",
}

# ClickHouse's own mapping of error codes to HTTP statuses; any other code is a 500.
STATUS = {194: 401, 229: 413, 48: 501, 209: 503, 76: 503, 439: 503, 381: 411, 159: 408}
STATUS.update(dict.fromkeys((192, 193, 516, 497), 403))
STATUS.update(dict.fromkeys((46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511), 404))
STATUS.update(dict.fromkeys((6, 8, 15, 25, 26, 27, 36, 37, 38, 41, 44, 53, 62, 72, 117, 123), 400))
STATUS.update(dict.fromkeys((167, 168, 223, 321, 376, 427, 441), 400))

CONTENT_TYPES = {
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "Native": "application/octet-stream",
    "RowBinary": "application/octet-stream",
    "RowBinaryWithNamesAndTypes": "application/octet-stream",
}

COMMENT = r"(?:\s+|--[^\n]*\n|/\*.*?\*/)*"
FIRST_WORD = re.compile(COMMENT + r"\(*\s*(\w+)", re.S)
FORMAT_AT_END = re.compile(r"\bFORMAT\s+(\w+)\s*(?:SETTINGS\b[^;]*)?;?\s*$", re.I)
# INSERT INTO t (columns) [SETTINGS …] FORMAT X, then the data.
INSERT_WITH_DATA = re.compile(
    rb"^(\s*INSERT\s+INTO\s+(?:`[^`]*`|\"[^\"]*\"|[\w.])+\s*(?:\([^()]*\)\s*)?)"
    rb"(SETTINGS\s.*?)?\bFORMAT\s+(\w+)[ \t]*\r?\n?(.*)$",
    re.I | re.S,
)
CREATE_DATABASE = re.compile(r"\s*CREATE\s+DATABASE\s+(?!.*\bENGINE\b)", re.I | re.S)
READ_ONLY_WORDS = {"select", "with", "show", "describe", "desc", "exists", "explain", "check"}


class QueryError(Exception):
    """An error as ClickHouse words it."""

    def __init__(self, text):
        super().__init__(text)
        self.text = text
        found = re.search(r"Code: (\d+)", text)
        self.code = int(found.group(1)) if found else 1001  # 1001 is STD_EXCEPTION

    @property
    def status(self):
        return STATUS.get(self.code, 500)


def quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def first_word(text):
    found = FIRST_WORD.match(text)
    return found.group(1).lower() if found else ""


class Engine:
    """One connection, used by one query at a time."""

    def __init__(self, path, config):
        self.lock = threading.Lock()
        self.own, self.present = {}, {}  # values of the settings that some query changed
        self.scratch = os.path.join(path, "inserts")
        os.makedirs(self.scratch, exist_ok=True)
        if hasattr(chdb, "connect"):
            self.connection = chdb.connect(f"{path}?config-file={config}")
            # chdb alone has this on: it would take any word for `SELECT word`.
            self.set_unless_read_only("implicit_select=0")
        else:
            # chdb 1.x reads the file config.xml of the working directory, and its default database is
            # one of its own, kept in memory.
            self.connection = None
            self.path = path
            os.chdir(os.path.dirname(config))
            self.execute("SET allow_deprecated_database_ordinary=1")
            self.execute("CREATE DATABASE IF NOT EXISTS `default`")
            self.execute("USE `default`")
        self.version = self.execute("SELECT version()").decode().strip()
        self.timezone = self.execute("SELECT timezone()").decode().strip()

    def set_unless_read_only(self, setting):
        """A profile with readonly=1 lets nobody set anything."""
        try:
            self.execute(f"SET {setting}")
        except QueryError as error:
            if error.code != 164:
                raise

    def execute(self, sql, output="TabSeparated"):
        try:
            if self.connection:
                answer = self.connection.query(sql, output)
            else:
                # In a database of the default engine (Atomic), chdb 1.x dies of one DROP in some hundred.
                if CREATE_DATABASE.match(sql):
                    sql = sql.rstrip("; \n") + " ENGINE = Ordinary"
                answer = chdb.query(sql, output, path=self.path)
        except Exception as error:  # each version of chdb raises other types
            raise QueryError(str(error)) from error
        return bytes(answer.bytes() or b"") if answer is not None else b""

    def run(self, query, database, settings, output):
        """Runs one query with settings that hold for it alone; answers its bytes."""
        changes_settings = first_word(query.decode("utf-8", "replace")) == "set"
        with self.lock:
            self.apply({} if changes_settings else settings)
            if database:
                self.execute(f"USE `{database}`")
            try:
                return self.insert_or_execute(query, output)
            finally:
                if database:
                    self.execute("USE `default`")
                if changes_settings:
                    self.own, self.present = {}, {}

    def apply(self, settings):
        """Brings the connection to these settings, and to its own values of all others.

        What one query needed is put back by the next one that needs something else: to chdb 1.x, each SET costs
        as much as a query.
        """
        self.look_up([name for name in settings if name not in self.own])
        # What stands already is left alone: chdb 1.x forgets the quotes of `SET x='word'`, and fails later. The new
        # engine is told all, since it says `limit` is 0 whatever it is.
        wanted = {name: value for name, value in {**self.own, **settings}.items()
                  if self.present.get(name) != value or (self.connection and name in settings)}
        if wanted:
            noted = [name for name in wanted if name in self.own]
            self.present.update(dict.fromkeys(noted))  # not known, should the SET fail half-way
            self.execute("SET " + ", ".join(f"{name}={quoted(value)}" for name, value in wanted.items()))
            self.present.update((name, wanted[name]) for name in noted)

    def look_up(self, names):
        """Notes the connection's own values of these: `SET x=DEFAULT` does nothing in chdb 1.x."""
        names = [name for name in names if not name.startswith("param_")]
        if not names:
            return
        listed = ",".join(quoted(name) for name in names)
        # One row, since a profile under test may cut lists.
        query = f"SELECT groupArray([name, value]) FROM system.settings WHERE name IN ({listed})"
        found = dict(json.loads(self.execute(query, "JSONCompactEachRow"))[0])
        for name in names:
            if name not in found:
                raise QueryError(f"Code: 115. DB::Exception: Setting {name} is neither a builtin setting nor started"
                                 " with the prefix 'SQL_' registered for user-defined settings. (UNKNOWN_SETTING)")
        self.own.update(found)
        self.present.update(found)

    def insert_or_execute(self, query, output):
        found = INSERT_WITH_DATA.match(query)
        if not found:
            return self.execute(query.decode("utf-8", "surrogateescape"), output)
        # The engine's parser of a query with data ends it at an empty line, and takes no bytes that are not
        # UTF-8; a file has neither limit.
        head, settings, name, data = found.groups()
        with tempfile.NamedTemporaryFile(dir=self.scratch) as file:
            file.write(data)
            file.flush()
            sql = f"{head.decode()} FROM INFILE {quoted(file.name)} {(settings or b'').decode()} FORMAT {name.decode()}"
            return self.execute(sql, output)

    def close(self):
        # A query that still runs may take longer than whoever stops us wants to wait.
        if self.lock.acquire(timeout=5) and self.connection:
            self.connection.close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version, sys_version = "chdb_server", ""
    wbufsize = -1  # headers and body in one packet
    engine = None
    users = {}
    query_id = ""

    def do_GET(self):
        path, parameters, body = self.request_parts()
        if path == "/ping" or (path == "/" and not parameters.get("query") and not body):
            self.answer(200, b"Ok.\n", "text/html; charset=UTF-8")
        elif path != "/":
            self.answer(404, f"There is no handle {path}\n\nUse / or /ping for health checks.\n".encode())
        else:
            self.query(parameters, body)

    do_POST = do_GET
    do_HEAD = do_GET

    def request_parts(self):
        url = urlsplit(self.path)
        parameters = dict(parse_qsl(url.query, keep_blank_values=True))
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return url.path, parameters, b"".join(self.chunks())
        return url.path, parameters, self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def chunks(self):
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def query(self, parameters, body):
        self.query_id = parameters.get("query_id") or self.headers.get("X-ClickHouse-Query-Id") or str(uuid.uuid4())
        started = time.time()
        try:
            self.check_user(parameters)
            url_query = parameters.get("query", "").encode()
            query = url_query + b"\n" + body if url_query and body else url_query or body
            if not query.strip():
                raise QueryError("Code: 62. DB::Exception: Syntax error: failed at position 1 (end of query)."
                                 " Empty query. (SYNTAX_ERROR)")
            text = query.decode("utf-8", "replace")
            settings = {k: v for k, v in parameters.items() if k not in RESERVED}
            self.check_read_only(text, settings)
            output = parameters.get("default_format") or self.headers.get("X-ClickHouse-Format") or "TabSeparated"
            database = parameters.get("database") or self.headers.get("X-ClickHouse-Database")
            answer = self.engine.run(query, database, settings, output)
        except QueryError as error:
            self.answer_error(error)
            return
        named = FORMAT_AT_END.search(text)
        output = named.group(1) if named else output
        self.answer(200, answer, CONTENT_TYPES.get(output, "text/plain; charset=UTF-8"), {
            "X-ClickHouse-Format": output,
            "X-ClickHouse-Summary": json.dumps({"elapsed_ns": str(int((time.time() - started) * 1e9))}),
        })

    def check_user(self, parameters):
        user, password = self.credentials(parameters)
        if self.users.get(user) != password:
            raise QueryError(f"Code: 516. DB::Exception: {user}: Authentication failed: password is incorrect,"
                             " or there is no user with such name. (AUTHENTICATION_FAILED)")

    def credentials(self, parameters):
        kind, _, encoded = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            user, _, password = base64.b64decode(encoded).decode("utf-8", "replace").partition(":")
            return user, password
        if "X-ClickHouse-User" in self.headers:
            return self.headers["X-ClickHouse-User"], self.headers.get("X-ClickHouse-Key", "")
        return parameters.get("user", "default"), parameters.get("password", "")

    def check_read_only(self, text, settings):
        """`readonly` is judged here: the engine could never take it back on its one connection."""
        read_only = settings.pop("readonly", "0") != "0" or self.command == "GET"
        if read_only and first_word(text) not in READ_ONLY_WORDS:
            raise QueryError("Code: 164. DB::Exception: default: Cannot execute query in readonly mode. (READONLY)")

    def answer_error(self, error):
        body = f"{error.text.rstrip()} (version {self.engine.version} (official build))\n"
        self.answer(error.status, body.encode("utf-8", "replace"), extra={"X-ClickHouse-Exception-Code": str(error.code)})

    def answer(self, status, body, content_type="text/plain; charset=UTF-8", extra=None):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-ClickHouse-Server-Display-Name", "dev")
        self.send_header("X-ClickHouse-Query-Id", self.query_id)
        self.send_header("X-ClickHouse-Timezone", self.engine.timezone)
        for name, value in (extra or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format, *args):
        print(self.log_date_time_string(), format % args, flush=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # tests open many connections at once


def stop(_signal, _frame):
    raise SystemExit(0)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--path", required=True, help="folder of the data")
    options.add_argument("--config", required=True, help="ClickHouse configuration file")
    options.add_argument("--users", required=True, help="JSON file: user to password")
    arguments = options.parse_args()
    with open(arguments.users) as file:
        Handler.users = json.load(file)
    server = Server(("127.0.0.1", arguments.port), Handler)
    Handler.engine = Engine(arguments.path, arguments.config)
    signal.signal(signal.SIGTERM, stop)  # after the engine, which sets handlers of its own
    try:
        server.serve_forever()
    finally:
        Handler.engine.close()
        os._exit(0)  # threads inside the engine may never end


if __name__ == "__main__":
    main()
