import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { Files } from '#libs/files/files.ts';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import type { Admission } from '#libs/calls/admission.ts';
import type { Calls } from '#libs/calls/calls.ts';
import type { PlanDeps } from '#libs/calls/plan/run-plan.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import type { Pricing } from '#libs/prices/pricing.ts';
import type { OnJobEnded } from '#libs/queue/ended-job.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { CallMetrics } from '#libs/request-log/record/call-metrics.ts';
import type { CallCosts } from '#libs/request-log/record/call-costs.ts';
import type { createLimitRules } from '#libs/limits/limit-rules.ts';
import type { Limits } from '#libs/limits/limits.ts';
import type { AlertWebhook } from '#libs/policies/deliver-alert.ts';
import type { RequestLog } from '#libs/request-log/write/request-log.ts';
import type { AuditKeys } from '#libs/seal/audit-keys.ts';
import type { SecretCache } from '#libs/secret-managers/secret-cache.ts';
import type { SecretManagers } from '#libs/secret-managers/secret-managers.ts';
import type { Traffic } from '#libs/calls/protect/traffic/traffic.ts';
import type { StoredObjects } from '#libs/calls/protect/stored-objects/stored-objects.ts';
import type { ResponseCache } from '#libs/calls/protect/response-cache/response-cache.ts';
import type { z } from 'zod';
import type { Access } from './access.ts';
import type { platformFields } from './config.ts';
import type { Telemetry } from './operations/telemetry.ts';

export type PlatformConfig = z.output<z.ZodObject<typeof platformFields>>;

/** The parts that the API and the worker share. `parts` are in start order; each app decides when the queue starts. */
export type Platform = {
  pool: Pool;
  db: Kysely<Database>;
  databaseClock: DatabaseClock;
  eventLog: EventLog;
  /** Makes spans of ended jobs; undefined without telemetry. */
  onJobEnded: OnJobEnded | undefined;
  queue: JobQueue;
  blobs: BlobStore;
  /** The folder of the sealed log, the keys that sign its checkpoints, and the name of a new log. */
  audit: { folder: BlobFolder; keys: AuditKeys; name: () => Promise<string> };
  access: Access;
  /** Where secrets are kept that are not stored here, and those that were fetched. */
  secretManagers: SecretManagers;
  secretCache: SecretCache;
  files: Files;
  egress: Egress;
  calls: Calls;
  storedObjects: StoredObjects;
  /** Searches for the expression of a condition, in the threads of guardrails. */
  search: PlanDeps['search'];
  traffic: Traffic;
  responseCache: ResponseCache;
  requestLog: RequestLog;
  callMetrics: CallMetrics;
  /** null: OpenTelemetry is off. */
  telemetry: Telemetry | null;
  pricing: Pricing;
  /** The limits of a workspace. */
  limitRulesOf: ReturnType<typeof createLimitRules>;
  costs: CallCosts;
  /** Admits calls by budgets and rates; those of `calls` are admitted already. */
  admission: Admission;
  /** Counts of what limits did in this process. */
  limits: { stats: Limits['stats']; refused: () => { budget: number; rate: number }; alerts: () => number };
  /** Null if alerts are sent nowhere. */
  alertWebhook: AlertWebhook | null;
  memory: MemoryBudget;
  parts: Part[];
  queuePart: Part;
  /** Makes the start of a part wait for an unavailable database; the start can be repeated. */
  outlastingOutages: (part: Part) => Part;
};
