import { readFile, stat } from 'node:fs/promises';
import type { Kysely } from 'kysely';
import { z } from 'zod';
import type { Database } from '#libs/database/schema.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { organisationId } from '#libs/http/caller.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { newId } from '#libs/kernel/ids.ts';
import { diffPriceTables, type PriceChange } from '#libs/prices/diff-price-tables.ts';
import { createPriceTable, PriceTableDocument, type ModelRow, type PriceTable } from '#libs/prices/price-table.ts';
import { priceTableKind, priceTableModel, readCurrentPriceTable } from '#libs/resources/price-tables.ts';
import { CliError } from '../server/cli-error.ts';
import { operatorMetadata } from './operator-metadata.ts';
import { unreadableFile } from '../terminal/file-problem.ts';

/** Far larger than a table of all models of all providers. */
const fileBytesMax = 8_388_608;

export type Refresh = { before: string; after: string; changes: PriceChange[]; stored: boolean };

/**
 * Makes the table in a file the current one; running processes use it within a second. With `isDryRun`, or if it already is
 * the current one, it is not stored. Throws CliError if the file is invalid.
 */
export async function refreshPrices(
  db: Kysely<Database>,
  { file, isDryRun }: { file: string; isDryRun: boolean },
): Promise<Refresh> {
  const table = await readTable(file);
  const current = await readCurrentPriceTable(db);
  const changes = diffPriceTables(current.document, table.document);
  const stored = !isDryRun && table.version !== current.version;
  if (stored) {
    const id = newId(priceTableKind.idPrefix);
    const metadata = operatorMetadata();
    await createEventLog(db).transact({ workspaceId: organisationId, streams: [id], metadata }, async (unit) => {
      await unit.append(priceTableModel, id, [{ type: 'price_table.created', data: { table: table.document } }]);
      await announceAccessChange(unit);
    });
  }
  return { before: current.version, after: table.version, changes, stored };
}

async function readTable(file: string): Promise<PriceTable> {
  const { size } = await stat(file).catch((error: unknown) => {
    throw unreadableFile(file, error);
  });
  if (size > fileBytesMax) throw new CliError(`${file} is ${size} bytes long. The maximum is ${fileBytesMax}.`);
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    throw unreadableFile(file, error);
  });
  const read = PriceTableDocument.safeParse(jsonOf(file, text));
  if (!read.success) throw new CliError(`${file} is not a valid price table:\n${z.prettifyError(read.error)}`);
  return createPriceTable(read.data);
}

function jsonOf(file: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new CliError(`${file} is not valid JSON: ${error instanceof Error ? error.message : String(error)}.`);
  }
}

/** The changes of a refresh as text, one line per model. */
export function describeRefresh({ before, after, changes, stored }: Refresh): string[] {
  const lines = changes.map(({ provider, model, before: old, after: fresh }) => {
    if (old === null) return `+ ${provider} ${model}: ${describeRow(fresh)}`;
    if (fresh === null) return `- ${provider} ${model}`;
    return `~ ${provider} ${model}: ${describeRow(old)} -> ${describeRow(fresh)}`;
  });
  const end = stored
    ? `stored: ${before} -> ${after}`
    : `not stored: the current table is ${before}, the file is ${after}`;
  return [...lines, changes.length === 1 ? '1 price differs' : `${changes.length} prices differ`, end];
}

/** The providers of a table as text, one line each. */
export const describeTable = ({ version, document }: PriceTable): string[] => [
  `price table ${version}`,
  ...Object.entries(document.providers).map(([provider, { models, includes = [], as_of, source }]) => {
    const included = includes.length === 0 ? '' : `, plus those of ${includes.join(', ')}`;
    const count = Object.keys(models).length;
    return `${provider.padEnd(12)} ${String(count).padStart(3)} ${count === 1 ? 'model' : 'models'}${included}, as of ${as_of}: ${source}`;
  }),
];

/** The price of a model at a provider. `model` is its name in the price table. */
export type ProviderPrice = { provider: string; model: string; price: ModelRow };

/** The price of a model at each provider that has one, for any form of its name. */
export function findPrices({ document, find, rowOf }: PriceTable, model: string): ProviderPrice[] {
  return Object.keys(document.providers).flatMap((provider) => {
    const price = find(provider, model);
    const listed = price === null ? null : rowOf(price);
    return listed === null ? [] : [{ provider, model: listed.name, price: listed.row }];
  });
}

export const describePrice = ({ provider, model, price }: ProviderPrice): string =>
  `${provider.padEnd(12)} ${model}: ${describeRow(price)}`;

/** Dollars per million tokens or per piece. */
const describeRow = (row: ModelRow | null): string =>
  Object.entries(row ?? {})
    .map(([name, value]) => `${name} ${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join(', ');
