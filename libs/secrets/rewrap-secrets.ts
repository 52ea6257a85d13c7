import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { countSecrets, replaceMasterKeyCheck, type MasterKeys, type SecretsByMasterKey } from './master-key.ts';
import { SecretUnreadableError, type Secrets } from './secrets.ts';

type Options = {
  db: Kysely<Database>;
  secrets: Pick<Secrets, 'rewrap'>;
  masterKeys: MasterKeys;
  /** Called after each page with the number of rewrapped secrets so far. */
  onProgress?: (rewrapped: number) => void;
  /** The maximum of rows in memory. Default 200. */
  pageRows?: number;
};

/**
 * `left`: secrets that the newest key does not open, by the ID of the key that they need. If it is empty, the other
 * keys can be removed.
 */
export type RewrapReport = { rewrapped: number; left: SecretsByMasterKey };

// A secret that a process with another newest key stored meanwhile is found by the next pass.
const passesMax = 10;

/**
 * Rewraps every stored secret under the newest master key, while processes that know all of the keys continue to serve.
 * Each row is changed by a separate statement, so that this can be interrupted at any moment and started again. When no
 * secret is left under another key, only processes with the newest one start from then on. Rows that cannot be opened
 * stay unchanged.
 */
export async function rewrapSecrets(options: Options): Promise<RewrapReport> {
  const { db, masterKeys } = options;
  const [newest] = masterKeys;
  let rewrapped = 0;
  for (let pass = 0; pass < passesMax; pass += 1) {
    const before = rewrapped;
    rewrapped = await rewrapOnce(options, before);
    if (rewrapped === before) break;
  }
  const { [newest.id]: _done, ...left } = await countSecrets(db);
  if (Object.keys(left).length === 0) await replaceMasterKeyCheck(db, newest);
  return { rewrapped, left };
}

async function rewrapOnce(
  { db, secrets, masterKeys: [newest], onProgress, pageRows = 200 }: Options,
  before: number,
): Promise<number> {
  let rewrapped = before;
  for (let after = ''; ;) {
    const rows = await db
      .selectFrom('secret')
      .selectAll()
      .where('master_key_id', '<>', newest.id)
      .where('id', '>', after)
      .orderBy('id')
      .limit(pageRows)
      .execute();
    for (const row of rows) {
      try {
        if (await secrets.rewrap(db, row)) rewrapped += 1;
      } catch (error) {
        if (!(error instanceof SecretUnreadableError)) throw error;
      }
      after = row.id;
    }
    onProgress?.(rewrapped);
    if (rows.length < pageRows) return rewrapped;
  }
}
