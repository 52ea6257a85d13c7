/**
 * The server's settings, as arguments, so that each start uses those of this release and no file has to be edited.
 * Sized for a machine with 2 cores and 2 GB that runs the whole platform.
 */
export function serverSettings(options: {
  port: number;
  durable: boolean;
  maxConnections: number;
  clusterName: string;
}): string[] {
  const settings: Record<string, string | number> = {
    cluster_name: options.clusterName,
    listen_addresses: '127.0.0.1',
    port: options.port,
    // All connections use passwords: a socket would need a folder that other users cannot reach.
    unix_socket_directories: '',
    password_encryption: 'scram-sha-256',
    max_connections: options.maxConnections,

    shared_buffers: '256MB',
    effective_cache_size: '1GB',
    work_mem: '8MB',
    maintenance_work_mem: '64MB',
    random_page_cost: 1.1, // The disk is an SSD.
    jit: 'off', // There are many short statements.

    fsync: options.durable ? 'on' : 'off',
    full_page_writes: options.durable ? 'on' : 'off',
    synchronous_commit: 'on', // This also applies in tests: a killed server loses nothing that was acknowledged.
    wal_compression: 'on',
    // Batches insert in bulk: fewer checkpoints, fewer full pages. A throw-away database can be in memory.
    max_wal_size: options.durable ? '2GB' : '512MB',
    min_wal_size: '128MB',
    checkpoint_timeout: '15min',
    checkpoint_completion_target: 0.9,

    // One forgotten writer stalls every subscriber of the log. Our pools set shorter limits; these catch all other
    // sessions.
    idle_in_transaction_session_timeout: '60s',
    transaction_timeout: '15min',
    // A query whose client was killed ends, and releases its locks, before it has its answer.
    client_connection_check_interval: '5s',

    timezone: 'UTC',
    log_timezone: 'UTC',
    lc_messages: 'C', // launch-server.ts recognises some lines.
    // The server's log is forwarded to ours, which must contain no statements and no values. It has no ERROR lines (the
    // client gets those), no text of statements and no DETAIL lines.
    log_destination: 'stderr',
    logging_collector: 'off',
    log_line_prefix: '',
    log_min_messages: 'log',
    log_min_error_statement: 'panic',
    log_error_verbosity: 'terse',
    log_statement: 'none',
    log_checkpoints: 'off',
    log_autovacuum_min_duration: -1,
  };
  return Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
}
