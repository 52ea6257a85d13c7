import { pino } from 'pino';
import { expect, onTestFinished, test } from 'vitest';
import { canAssumeTenantRole } from '#libs/database/isolate-workspaces.ts';
import { migrate } from '#libs/database/migrate.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { query, start, useDataDirs } from './embedded-harness.ts';

const usedDataDir = useDataDirs();

const logger = pino({ level: 'silent' });

test('a server on which Sluice may make no role is migrated without isolation, and isolates once an administrator has made the role', async () => {
  const { connectionString, adminConnectionString } = await start({ dataDir: await usedDataDir() });
  for (const statement of ['revoke sluice_tenant from sluice', 'drop role sluice_tenant']) {
    await query(adminConnectionString, statement);
  }
  const pool = createPool({ connectionString, applicationName: 'test', max: 1 }, logger);
  onTestFinished(() => pool.end());
  const db = createDatabase(pool);
  expect((await migrate({ connectionString, logger })).length).toBeGreaterThan(0);
  expect(await canAssumeTenantRole(db)).toBe(false);

  // The statements of docs/deploy.md.
  await query(adminConnectionString, 'create role sluice_tenant nologin; grant sluice_tenant to sluice');
  await migrate({ connectionString, logger });
  expect(await canAssumeTenantRole(db)).toBe(true);
  const rights = `select has_table_privilege('sluice_tenant', 'batch', 'select') as reads`;
  expect(await query(connectionString, rights)).toEqual([{ reads: true }]);
});
