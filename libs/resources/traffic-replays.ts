import type { z } from 'zod';
import {
  ReplayObject,
  type ReplayDifference,
  type ReplayReport,
  type ReplaySelection,
  type ReplayVerdicts,
  type replayStatuses,
} from '#libs/contracts/batches/traffic-replays.ts';
import type { BatchTarget } from '#libs/database/schema.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import type { Authors } from '#libs/records/resource-row.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { defineKind } from './define-kind.ts';

/** The judge of a replay. Its target is stored until its batch exists. */
export type ReplayJudge = {
  model: string;
  limit: number;
  seed: number;
  instructions: string | null;
  /** The ID that its batch gets. */
  batch_id: string;
  target: BatchTarget;
};

export type TrafficReplayData = Authors & {
  filters: Record<string, unknown> | null;
  source_batch_id: string | null;
  endpoint: string;
  model: string | null;
  prompt: string | null;
  config: string | null;
  selection: ReplaySelection;
  batch_id: string;
  judge: ReplayJudge | null;
  status: (typeof replayStatuses)[number];
  report?: ReplayReport;
  differences?: ReplayDifference[];
  verdicts?: ReplayVerdicts;
  error?: string;
};

const merge = (data: TrafficReplayData, event: { data: object }): TrafficReplayData => ({ ...data, ...event.data });

/** Recorded calls, or lines of a batch, that are called again. A worker compares the answers (libs/replays). */
export const trafficReplayKind = defineKind<z.ZodRawShape, TrafficReplayData>({
  noun: 'traffic_replay',
  idPrefix: 'replay_',
  area: 'batches',
  path: '/v1/replays',
  names: {
    one: 'traffic replay',
    many: 'traffic replays',
    command: 'traffic-replays',
    tag: 'Traffic replays',
    about: 'Calls that were made before, called again with another model, config or prompt, and compared.',
    object: 'traffic_replay',
  },
  texts: {
    retrieve: {
      description:
        'Includes the report once the batch has ended, and the calls with the greatest differences. The answers ' +
        'themselves are in the request log and in the lines of the batches.',
    },
    delete: {
      description: 'Deletes the report. The batches and their files remain.',
      errors: { traffic_replay_in_progress: 'its batch has not ended: cancel the batch first' },
    },
  },
  fields: {},
  // POST also selects the calls and creates the batch (apps/api/replays/create-replay.ts).
  creation: false,
  changes: false,
  history: { events: { compared: merge, judged: merge, failed: merge } },

  removal: {
    check({ id, data }) {
      if (data.status !== 'running' && data.status !== 'judging') return;
      const message = `The traffic replay '${id}' is ${data.status}. Cancel its batch before you delete it.`;
      throw new GatewayError('conflict', 'traffic_replay_in_progress', message);
    },
  },

  view({ workspace_id, data }) {
    const { filters, source_batch_id, endpoint, model, prompt, config, selection, batch_id, judge, status } = data;
    return {
      workspace_id,
      status,
      error: data.error ?? null,
      filters,
      source_batch_id,
      endpoint,
      model,
      prompt,
      config,
      selection,
      batch_id,
      judge: judge && { model: judge.model, limit: judge.limit, seed: judge.seed, batch_id: judge.batch_id },
      report: data.report ?? null,
      verdicts: data.verdicts ?? null,
      created_by: data.created_by ?? null,
    };
  },
  details: {
    read: async ({ data }) => (data.differences === undefined ? {} : { differences: data.differences }),
  },
  viewSchema: ReplayObject,
});

export const trafficReplayModel = resourceModel([trafficReplayKind]);
