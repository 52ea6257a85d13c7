import { sql, type Kysely } from 'kysely';
import { PriceTableObject, priceTableFields } from '#libs/contracts/logs/prices.ts';
import type { Database } from '#libs/database/schema.ts';
import { builtInPrices } from '#libs/prices/built-in-prices.ts';
import { contentHash, createPriceTable, type PriceTable, type PriceTableDocument } from '#libs/prices/price-table.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { defineKind } from '#libs/resources/define-kind.ts';
import type { LiveKind } from '#libs/records/live/live-resources.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { exampleProvider } from '#libs/resources/kind-texts.ts';

export type PriceTableData = { table: PriceTableDocument };

export type LivePriceTable = { readonly createdAtMs: number; readonly table: PriceTable };

/**
 * Price lists of the organisation. The newest one replaces the built-in list of the release; when it is deleted, the
 * previous one is used again. A list never changes, because the rows that it priced refer to its version.
 */
export const priceTableKind = defineKind<typeof priceTableFields, PriceTableData, LivePriceTable>({
  noun: 'price_table',
  idPrefix: 'price_',
  area: 'prices',
  texts: {
    create: {
      description:
        'Replaces the whole previous table immediately: models that are not listed have no price. Prices are US ' +
        'dollars per million tokens, per call or per image. Past calls keep their cost and the version of the table ' +
        'that determined it.',
      example: {
        table: {
          date: '2026-11-01',
          providers: {
            [exampleProvider]: {
              source: 'https://example.com/prices',
              as_of: '2026-11-01',
              models: { 'gpt-5-mini': { input: '0.25', cached_input: '0.025', output: '2' } },
            },
          },
        },
      },
    },
    delete: {
      description: 'Restores the previous table, or the one that ships with this release. Past calls keep their cost.',
    },
  },
  path: '/v1/admin/price-tables',
  names: { one: 'price table', many: 'price tables', tag: 'Prices', about: 'Prices of models.' },
  owner: 'organisation',
  fields: priceTableFields,
  changes: false,

  check({ table }) {
    if (table === undefined) return { data: {} };
    try {
      createPriceTable(table);
    } catch (error) {
      const message = `Invalid 'table': ${error instanceof Error ? error.message : 'it cannot be parsed'}.`;
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'table' });
    }
    return { data: { table: JSON.parse(JSON.stringify(table)) as PriceTableDocument } };
  },

  view: ({ data: { table } }) => ({
    version: `${table.date}.${contentHash(table)}`,
    date: table.date,
    table,
  }),
  viewSchema: PriceTableObject,

  cached: {
    toEntry: ({ data, created_at }) => ({
      createdAtMs: created_at.getTime(),
      table: createPriceTable(data.table),
    }),
  },
});

/** For the command that stores a price table without the routes. */
export const priceTableModel = resourceModel([priceTableKind]);

/** Returns the table in use: the newest of the organisation, or else `builtIn`. */
export function createCurrentPriceTable(live: () => LiveKind<LivePriceTable>, builtIn: PriceTable): () => PriceTable {
  let seen: LiveKind<LivePriceTable> | undefined;
  let current = builtIn;
  return () => {
    // This runs for every call. The map is only replaced after a change.
    const now = live();
    if (now === seen) return current;
    seen = now;
    const [newest] = [...now.byId.values()].toSorted((a, b) => b.createdAtMs - a.createdAtMs);
    current = newest?.table ?? builtIn;
    return current;
  };
}

/** The table in use, read from the database, for processes without the snapshot. */
export async function readCurrentPriceTable(db: Kysely<Database>): Promise<PriceTable> {
  const { rows } = await sql<{ data: PriceTableData }>`
    select data from resource where kind = ${priceTableKind.noun} and deleted_at is null
    order by created_at desc, id desc limit 1`.execute(db);
  return rows[0] === undefined ? builtInPrices : createPriceTable(rows[0].data.table);
}
