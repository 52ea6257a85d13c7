import { CompiledQuery, type DatabaseConnection } from 'kysely';
import { OutcomeAwareDriver } from '#libs/database/pool.ts';

/** What Postgres says of the statements that it ran. */
export type Explained = {
  /** Of its own execution, without planning and without sending rows. */
  executionMs: number;
  planningMs: number;
  /** Rows that scans of tables and indexes read, those that a filter removed too. */
  rows: number;
  /** Pages of 8 KiB, from memory or disk. */
  pages: number;
};

type PlanNode = {
  'Node Type': string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  'Rows Removed by Index Recheck'?: number;
  'Shared Hit Blocks'?: number;
  'Shared Read Blocks'?: number;
  Plans?: PlanNode[];
};
type Explanation = { Plan: PlanNode; 'Execution Time': number; 'Planning Time': number };

type Config = ConstructorParameters<typeof OutcomeAwareDriver>[0];
type Options = Parameters<OutcomeAwareDriver['acquireConnection']>[0];

/** A driver that has every SELECT explained, with ANALYZE, before it is run, while `explain` holds a sink. */
export class ExplainingDriver extends OutcomeAwareDriver {
  readonly #explain: { sink: Explained[] | null };
  // The driver keeps its connections, and each is to be explained once.
  readonly #wrapped = new WeakSet<DatabaseConnection>();

  constructor(config: Config, explain: { sink: Explained[] | null }) {
    super(config);
    this.#explain = explain;
  }

  override async acquireConnection(options?: Options): Promise<DatabaseConnection> {
    const connection = await super.acquireConnection(options);
    if (this.#wrapped.has(connection)) return connection;
    this.#wrapped.add(connection);
    const execute = connection.executeQuery.bind(connection);
    const explain = this.#explain;
    connection.executeQuery = async <Row>(query: CompiledQuery) => {
      if (explain.sink !== null && /^\s*(?:select|with)\b/i.test(query.sql) && !query.sql.includes('set_config')) {
        const text = `explain (analyze, buffers, timing off, format json) ${query.sql}`;
        const { rows } = await execute<{ 'QUERY PLAN': [Explanation] }>(CompiledQuery.raw(text, [...query.parameters]));
        const [found] = rows[0]?.['QUERY PLAN'] ?? [];
        if (found !== undefined) explain.sink.push(toExplained(found));
      }
      return await execute<Row>(query);
    };
    return connection;
  }
}

function toExplained({ Plan: plan, ...times }: Explanation): Explained {
  return {
    executionMs: times['Execution Time'],
    planningMs: times['Planning Time'],
    rows: scannedRows(plan),
    pages: (plan['Shared Hit Blocks'] ?? 0) + (plan['Shared Read Blocks'] ?? 0),
  };
}

function scannedRows(node: PlanNode): number {
  const isScan = /^(?:Parallel )?(?:Seq|Index|Index Only|Bitmap Heap) Scan$/.test(node['Node Type']);
  const removed = (node['Rows Removed by Filter'] ?? 0) + (node['Rows Removed by Index Recheck'] ?? 0);
  const own = isScan ? (node['Actual Rows'] + removed) * node['Actual Loops'] : 0;
  return (node.Plans ?? []).reduce((sum, each) => sum + scannedRows(each), own);
}
