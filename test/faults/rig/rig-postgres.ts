import { readdirSync, readFileSync } from 'node:fs';
import pg from 'pg';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import {
  removeEmbeddedPostgres,
  startEmbeddedPostgres,
  type EmbeddedPostgres,
} from '#libs/database/embedded/start-embedded-postgres.ts';

/** A Postgres of the rig's own, with fsync on, that can be killed with all its sessions and started again. */
export type RigPostgres = {
  connectionString: string;
  /** Of its postmaster. */
  pid(): number;
  /** SIGKILL of every process of the server; up again on the same port after `downMs`. Resolves when it answers. */
  kill(downMs: number): Promise<void>;
  /** SIGSTOP for every process of the server: connections stay open and nothing answers. The result sends SIGCONT. */
  freeze(): Promise<() => void>;
  /** `freeze` for a time. */
  hang(forMs: number): Promise<void>;
  /** Ends every session of the platform, as an administrator or a failing network would. */
  endSessions(): Promise<number>;
  /** `keep`: the data is kept for inspection. */
  stop(options: { keep: boolean }): Promise<void>;
};

export async function startRigPostgres(options: { dataDir: string; logger: Logger }): Promise<RigPostgres> {
  const { dataDir, logger } = options;
  const start = (): Promise<EmbeddedPostgres> => startEmbeddedPostgres({ dataDir, logger, durable: true });
  let server = await start();
  const { connectionString } = server;
  let down: Promise<void> | undefined;

  const fall = async (downMs: number): Promise<void> => {
    const gone = new Promise<void>((resolve) => server.onExit(() => resolve()));
    // The postmaster first: otherwise it would take the end of a session for a crash and restart its sessions.
    signalAll([server.pid, ...childrenOf(server.pid)], 'SIGKILL');
    await gone;
    await sleep(downMs);
    server = await start();
    if (server.connectionString !== connectionString) throw new Error('Postgres came back at another address');
  };

  const freeze = async (): Promise<() => void> => {
    await down;
    const { pid } = server;
    // The postmaster is stopped first, so that it starts no more processes, and continued last.
    signalAll([pid], 'SIGSTOP');
    const stopped = childrenOf(pid);
    signalAll(stopped, 'SIGSTOP');
    return () => signalAll([...stopped, pid], 'SIGCONT');
  };

  return {
    connectionString,
    pid: () => server.pid,
    async kill(downMs) {
      down ??= fall(downMs).finally(() => {
        down = undefined;
      });
      await down;
    },
    freeze,
    async hang(forMs) {
      const goOn = await freeze();
      await sleep(forMs);
      goOn();
    },
    async endSessions() {
      const client = new pg.Client({ connectionString: server.adminConnectionString });
      client.on('error', () => {});
      try {
        await client.connect();
        const { rowCount } = await client.query(
          `select pg_terminate_backend(pid) from pg_stat_activity
           where pid <> pg_backend_pid() and application_name like 'sluice-%' and application_name <> 'sluice-faults'`,
        );
        return rowCount ?? 0;
      } catch {
        return 0; // the server is away: there are no sessions
      } finally {
        await client.end().catch(() => {});
      }
    },
    async stop({ keep }) {
      await down?.catch(() => {});
      await server.stop();
      if (!keep) await removeEmbeddedPostgres(dataDir);
    },
  };
}

function childrenOf(parent: number): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
        return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]) === parent;
      } catch {
        return false; // it ended meanwhile
      }
    })
    .map(Number);
}

function signalAll(pids: readonly number[], signal: NodeJS.Signals): void {
  for (const pid of pids) {
    try {
      process.kill(pid, signal);
    } catch {
      // It is gone already.
    }
  }
}
