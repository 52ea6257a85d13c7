import { CompiledQuery, type DatabaseConnection, type Kysely } from 'kysely';
import pg from 'pg';
import { isConnectionLost } from './database-error.ts';
import { tenantRole, workspaceSetting } from './isolate-workspaces.ts';
import { createDatabase, OutcomeAwareDriver, type OwnConnection } from './pool.ts';
import type { Database } from './schema.ts';
import { boundWorkspace } from './workspace-binding.ts';

/**
 * Kysely on the pool for the handlers of requests: each statement sees and writes only rows of the workspace that the
 * request is bound to (workspace-binding.ts), whatever its `where` contains. Postgres enforces that, by the policies of
 * isolate-workspaces.ts. A statement outside of a transaction takes three round trips instead of one. A transaction
 * takes no additional ones, as long as all of it is bound to the same workspace. A transaction that begins as the
 * system remains one. `isOn` false: the server has no role for it, and statements run as through `createDatabase`.
 *
 * Role and workspace are set for a transaction and not for the session, because a pooler such as PgBouncer passes the
 * session to another client after it.
 */
export function createWorkspaceDatabase(pool: pg.Pool, isOn: () => boolean): Kysely<Database> {
  return createDatabase(pool, (config) => new BoundDriver(config, isOn));
}

type Options = Parameters<OutcomeAwareDriver['acquireConnection']>[0];
type Settings = Parameters<OutcomeAwareDriver['beginTransaction']>[1];

class BoundDriver extends OutcomeAwareDriver {
  readonly #isOn: () => boolean;

  constructor(config: ConstructorParameters<typeof OutcomeAwareDriver>[0], isOn: () => boolean) {
    super(config);
    this.#isOn = isOn;
  }

  override async acquireConnection(options?: Options): Promise<DatabaseConnection> {
    const workspaceId = boundWorkspace();
    const connection = await super.acquireConnection(options);
    return workspaceId === null || !this.#isOn() ? connection : new BoundConnection(connection, this, workspaceId);
  }

  override async beginTransaction(connection: DatabaseConnection, settings: Settings): Promise<void> {
    if (!(connection instanceof BoundConnection)) return await super.beginTransaction(connection, settings);
    await this.begin(connection, settings);
    connection.inTransaction = { boundTo: connection.workspaceId };
  }

  /** Begins a transaction and binds it, in one round trip. */
  async begin({ inner, workspaceId }: BoundConnection, settings: Settings): Promise<void> {
    await this.beginAnd([bindingTo(workspaceId)], inner, settings);
  }

  override async commitTransaction(connection: DatabaseConnection): Promise<void> {
    await super.commitTransaction(ownOf(connection));
  }

  override async rollbackTransaction(connection: DatabaseConnection): Promise<void> {
    await super.rollbackTransaction(ownOf(connection));
  }

  override async releaseConnection(connection: DatabaseConnection): Promise<void> {
    await super.releaseConnection(ownOf(connection));
  }
}

const bindingTo = (workspaceId: string | null): string =>
  workspaceId === null
    ? 'set local role none'
    : `set local role ${tenantRole}; set local ${workspaceSetting} = ${pg.escapeLiteral(workspaceId)}`;

const ownOf = (connection: DatabaseConnection): OwnConnection =>
  (connection instanceof BoundConnection ? connection.inner : connection) as OwnConnection;

class BoundConnection implements DatabaseConnection {
  /**
   * The workspace whose rows the statements of the open transaction see; null for all. undefined outside of a
   * transaction.
   */
  inTransaction: { boundTo: string | null } | undefined;
  readonly inner: DatabaseConnection;
  readonly workspaceId: string;
  readonly #driver: BoundDriver;

  constructor(inner: DatabaseConnection, driver: BoundDriver, workspaceId: string) {
    this.inner = inner;
    this.workspaceId = workspaceId;
    this.#driver = driver;
  }

  executeQuery: DatabaseConnection['executeQuery'] = async <Row>(query: CompiledQuery) => {
    if (this.inTransaction) {
      await this.#follow(this.inTransaction);
      return await this.inner.executeQuery<Row>(query);
    }
    await this.#driver.begin(this, {});
    try {
      const result = await this.inner.executeQuery<Row>(query);
      await this.#driver.commitTransaction(this);
      return result;
    } catch (error) {
      // A lost session has no transaction to roll back, and the rollback would wait for it.
      if (!isConnectionLost(error)) await this.#driver.rollbackTransaction(this);
      throw error;
    }
  };

  /**
   * Inside a transaction, a part of the work can have a different binding. That costs a round trip at each end of the
   * part.
   */
  async #follow(transaction: { boundTo: string | null }): Promise<void> {
    const wanted = boundWorkspace();
    if (wanted === transaction.boundTo) return;
    await this.inner.executeQuery(CompiledQuery.raw(bindingTo(wanted)));
    transaction.boundTo = wanted;
  }

  streamQuery: DatabaseConnection['streamQuery'] = () => {
    throw new Error('a workspace database does not stream: read pages instead');
  };
}
