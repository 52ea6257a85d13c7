import { existsSync } from 'node:fs';
import type { Check, Finding } from './check.ts';

// The help lists these checks, so this file loads the code of each check only when it runs.

const records: Check = {
  name: 'records',
  summary: 'the tables that the API reads match the event log',
  canRepair: true,
  async run({ pool, db, onProgress }, { repair }) {
    const { checkInlineModels, rebuildInlineModels } = await import('#libs/event-log/rebuild.ts');
    const { announceAccessChange } = await import('#libs/identity/access-change.ts');
    const { inlineModels } = await import('../../platform/models.ts');
    const showEvents = (count: number): void => onProgress(`${count} events`);
    const compare = repair ? rebuildInlineModels : checkInlineModels;
    const { events, rows, difference } = await compare(pool, inlineModels, showEvents);
    const counts = { events, rows: Object.values(rows).reduce((sum, count) => sum + count, 0) };
    if (difference === null) return { counts, findings: [] };
    // Running processes must read the repaired keys again.
    if (repair) await db.transaction().execute(async (tx) => await announceAccessChange({ tx }));
    const { model, id, live, folded } = difference;
    const message = `the row is ${JSON.stringify(live)}, but its events give ${JSON.stringify(folded)}`;
    // The comparison stops at the first difference of each table.
    return { counts, findings: [{ state: repair ? 'repaired' : 'problem', subject: `${model} ${id}`, message }] };
  },
};

const digests: Check = {
  name: 'digests',
  summary: 'every event is as it was recorded, and none is missing',
  canRepair: false,
  async run({ db }) {
    const { checkDigests } = await import('#libs/event-log/check-digests.ts');
    const { findLostEvents } = await import('#libs/activity/find-lost-events.ts');
    const { inlineModels } = await import('../../platform/models.ts');
    const tables = inlineModels.filter(({ perEvent }) => !perEvent).map(({ name }) => name);
    const { checked, changed, missing, findings } = await checkDigests(db, tables);
    const { lost, streams } = await findLostEvents(db, 20);
    const inAuditLog = streams.map(({ streamId, lost: count, first }) => ({
      subject: streamId,
      message: `the audit log has ${count} events that do not exist, such as ${first}`,
    }));
    return {
      // Events that only the audit log has are usually also missing from their streams.
      counts: { events: checked, changed_events: changed, missing_events: Math.max(missing, lost) },
      findings: [...findings, ...inAuditLog].map((finding) => ({ state: 'problem', ...finding })),
    };
  },
};

const seal: Check = {
  name: 'seal',
  summary: 'the event log has every event as it was sealed',
  canRepair: false,
  async run({ db, onProgress }) {
    const { checkSeal } = await import('#libs/seal/check-seal.ts');
    const { auditFolder } = await import('#libs/seal/seal-log.ts');
    const folder = (await openStoredBlobs()).folder(auditFolder);
    const { entries, problems } = await checkSeal(db, folder, (count) => onProgress(`${count} entries`));
    return { counts: { entries }, findings: problems.map((problem) => ({ state: 'problem', ...problem })) };
  },
};

const logs: Check = {
  name: 'logs',
  summary: 'the request log has every row that the processes recorded',
  canRepair: false,
  run: async (context, options) => await (await import('./logs.ts')).checkLogs(context, options),
};

const calls: Check = {
  name: 'calls',
  summary: 'the request log has every call as it was sealed',
  canRepair: false,
  async run({ db, onProgress }, { since }) {
    const { checkCalls } = await import('#libs/request-log/seal/check-calls.ts');
    const showRecords = (count: number): void => onProgress(`${count} records`);
    const { seals, records, deleted, problems } = await checkCalls(db, { since, onProgress: showRecords });
    const findings: Finding[] = problems.map((problem) => ({ state: 'problem', ...problem }));
    return { counts: { seals, records, records_deleted_by_retention: deleted }, findings };
  },
};

const analytics: Check = {
  name: 'analytics',
  summary: 'the rollups of analytics match the request log',
  canRepair: true,
  async run({ db, onProgress }, { repair }) {
    const { checkRollups, rebuildRollups } = await import('#libs/analytics/rollups/check-rollups.ts');
    const { readEnv } = await import('#libs/kernel/read-env.ts');
    const { CliConfig } = await import('../operate/config.ts');
    const { days, different, waiting } = await checkRollups(db, onProgress);
    if (repair && different > 0) {
      const logRetentionMs = readEnv(CliConfig).SLUICE_REQUEST_LOG_RETENTION;
      const showMinutes = (minutes: number): void => onProgress(`${minutes} minutes rolled up`);
      await rebuildRollups(db, { nowMs: Date.now(), logRetentionMs, onProgress: showMinutes });
    }
    const rows = days.reduce((sum, day) => sum + day.rows, 0);
    return {
      counts: { days: days.length, rows, different_rows: different, changes_not_rolled_up_yet: waiting },
      findings: days
        .filter((day) => day.different > 0)
        .map((day) => ({
          state: repair ? 'repaired' : 'problem',
          subject: day.day,
          message: `${day.different} rows differ from the request log`,
        })),
    };
  },
};

const budgets: Check = {
  name: 'budgets',
  summary: 'the counters of budgets match the request log',
  canRepair: true,
  run: async (context, options) => await (await import('./budgets.ts')).checkBudgetCounters(context, options),
};

const results: Check = {
  name: 'results',
  summary: 'the results and files of batches match the digests in their events',
  canRepair: false,
  async run({ db, onProgress }) {
    const { checkResults } = await import('#libs/batches/look/check-results.ts');
    const { createEventLog } = await import('#libs/event-log/event-log.ts');
    const { createFiles } = await import('#libs/files/files.ts');
    const blobs = await openStoredBlobs();
    const files = createFiles({ db, eventLog: createEventLog(db), blobs });
    const counts = { batches: 0, lines: 0, events: 0 };
    const findings: Finding[] = [];
    for await (const check of checkResults({ db, files, blobs })) {
      counts.batches += 1;
      counts.lines += check.lines;
      counts.events += check.settles;
      for (const message of check.violations) findings.push({ state: 'problem', subject: check.batchId, message });
      onProgress(`${counts.batches} batches`);
    }
    return { counts, findings };
  },
};

/** Opens the blob store of the configuration. Throws ConfigurationError if there is none. */
async function openStoredBlobs() {
  const { ConfigurationError, readEnv } = await import('#libs/kernel/read-env.ts');
  const { blobFolder, openBlobs } = await import('../../platform/blobs.ts');
  const { CliConfig } = await import('../operate/config.ts');
  const config = readEnv(CliConfig);
  const folder = blobFolder(config);
  if (folder !== null && !existsSync(folder))
    throw new ConfigurationError(`There are no files in ${folder}. Set SLUICE_BLOBS or SLUICE_DATA_DIR.`);
  return await openBlobs(config);
}

/** All checks of `sluice check`, in the order in which they run. */
export const checks: readonly Check[] = [records, digests, seal, logs, calls, analytics, budgets, results];
