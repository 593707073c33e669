"""The replay: a double import happens on real engines, and the exporter must name it in figures.

Play-log events go through Kafka into a raw ClickHouse table, and from there into a summary. Four acts, each with
a topic, a group and a database of its own, beside a control pipeline that runs the same code with one worker:

    1  one subscribe() worker: all is well
    2  two assign() workers on one group: every message is written twice, and the summary counts it twice
    3  the second worker is gone, and the factor comes back to 1.10, not to 1.00: an older source is still there
    4  two workers again, but the summariser reads with FINAL: the summary is right while the raw table is not

After each act the exporter's own figures are judged against arithmetic on what was produced.

The modules, from the outside in:

    main          options, order of things, exit status
    stage         installs, builds, starts and stops ClickHouse, Kafka and the exporter
    exporter      the exporter's configuration and process
    play          plays the acts, waits for the exporter, prints what it says
    acts          what the acts are
    expectations  what each figure must be
    exposition    reads /metrics and knows how old its figures are
    pipeline      one producer, its workers and its summariser
    producer, worker    programs of their own, with a Kafka client
    summariser, warehouse    ClickHouse over HTTP
    actor         how a program and the one who drives it talk
    console       elapsed time and tables
"""
