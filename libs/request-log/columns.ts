import { z } from 'zod';
import type { Units, Usage } from '#libs/prices/usage.ts';

// The columns of the request log. The type of the table, the way rows are written and read, the filters, the API, exports
// and rollups all derive from this list. A new column needs an entry here and a migration.

/** The parts of an ended call that the log reads. */
export type EndedCall = {
  kind: 'live' | 'batch' | 'imported';
  operation: string;
  method: string;
  /** For an imported call: where it went. */
  url?: string;
  /** That of a batch line is `batchLineId`, so packs do not store it. */
  requestId: string;
  userId: string | null;
  trace: { traceId: string | null; spanId: string | null; parentSpanId: string | null; spanName: string | null };
  call: {
    workspaceId: string;
    keyId: string | null;
    metadata: Readonly<Record<string, string>> | null;
    pathname: string;
    /** Absent for a call that never had a plan. */
    plan?: { root: { kind: string } };
    /** The target that was called last. Absent for a call that never had a plan. */
    leaf?: { publicModel: { name: string } | null };
    target: { provider: string; label: string; integration?: string | undefined } | null;
    model: string | null;
    config?: Version | null;
    prompt?: Version | null;
    session?: { sessionId: string; agentId: string | null; parentAgentId: string | null } | null;
    earlierAttempts: readonly { durationMs: number }[];
    fallbacks?: number;
    retries?: number;
  };
  stream: boolean;
  /** The target of the config that answered; null without a config. */
  option: string | null;
  /** Only for a batch line. */
  batch: { id: string; line: number } | null;
  startedAtMs: number;
  durationMs: number;
  /** How it ended. `attempts` are those of the last target. */
  end: {
    /** null: there was no answer. */
    status: number | null;
    errorCode: string | null;
    attempts: readonly { durationMs: number }[];
    usage?: Usage | null;
    finishReason?: string | null;
    responseModel?: string | null;
    providerRequestId?: string | null;
    firstEventMs?: number;
    /** `HIT`, `MISS` or `REFRESH` if the cache could have answered the call. */
    cacheStatus?: string | undefined;
    /** How long the rest of the answer took after its last attempt had begun it, in milliseconds. */
    streamedMs?: number;
  };
};
type Version = { id: string; slug: string; version: number };

/** The cost of a call, in cents as decimals. */
export type CallCost = {
  /** null: not known. 0 for an answer from the cache, and for a call that no provider answered. */
  cents: string | null;
  /** The cost that an answer from the cache would have had at the provider. */
  savedCents: string | null;
  /** How much the provider's prompt cache saved. Absent or null: it was not used, or the cost is not known. */
  promptCacheSavedCents?: string | null;
  /** The version of the prices that were used; null if no prices were used. */
  version: string | null;
  /** Usage or cost are estimates, or an attempt may have had an unknown cost. */
  isEstimate: boolean;
};

/** A call with the values that are computed once for several columns. */
export type CallFacts = {
  ended: EndedCall;
  units: Units | null;
  cost: CallCost;
  steps: readonly object[] | null;
  verdicts: readonly CallVerdict[] | null;
};

/** The result of one guardrail in one run. */
const CallVerdict = z.object({
  kind: z.enum(['input_guardrails', 'output_guardrails']),
  id: z
    .string()
    .describe('The ID of a stored guardrail. Otherwise the ID in the config, or one made from its position.'),
  slug: z.string().nullable().describe('Null for a guardrail that is part of a config.'),
  version: z.int().nullable().describe('The version of a stored guardrail.'),
  verdict: z.enum(['passed', 'failed', 'denied']).describe('`failed`: only reported. `denied`: the call was refused.'),
});
export type CallVerdict = z.output<typeof CallVerdict>;

/** The JavaScript type of each type of column. `cents` are US cents as a decimal, which the API shows as US dollars. */
type Values = {
  text: string;
  uuid: string;
  date: string;
  time: Date;
  integer: number;
  float: number;
  cents: string;
  boolean: boolean;
  json: object;
};

type ColumnOf<Type extends keyof Values> = {
  /** How it is stored. A `text` longer than `logTextMax` is cut. */
  type: Type;
  /** Never null. */
  isRequired?: true;
  /** The value for a call. Absent: the log itself sets it. */
  from?: (facts: CallFacts) => Values[Type] | null;
  /**
   * How the API shows it, in the record itself or in its `usage`. `name` and `schema` are only needed if they do not
   * follow from the name and type of the column.
   */
  shown?: { in?: 'usage'; name?: string; schema?: z.ZodType; description?: string };
  /**
   * The filters on it: `list` names the one that takes several values; `isExact` adds one by its own name to the list
   * of logs.
   */
  filter?: { list?: string; description?: string; isExact?: true };
  /** Its name in exports. */
  exportedAs?: string;
  /** Whether rollups separate calls with different values. */
  isRolledUp?: true;
  /** Whether lines of a batch usually have different values, so that a pack stores one for each (write/pack-rows.ts). */
  isPerLine?: true;
};
export type Column = { [Type in keyof Values]: ColumnOf<Type> }[keyof Values];

/**
 * Rows that wait on disk have these columns in this order, so a new column must be added at the end. The day and the ID
 * come first.
 */
export const columns = {
  recorded_on: { type: 'date', isRequired: true },
  id: { type: 'uuid', isRequired: true, isPerLine: true },
  workspace_id: { type: 'text', isRequired: true, from: ({ ended }) => ended.call.workspaceId },
  started_at: {
    type: 'time',
    isPerLine: true,
    isRequired: true,
    from: ({ ended }) => new Date(ended.startedAtMs),
    shown: { description: 'ISO 8601 with milliseconds' },
  },
  kind: {
    type: 'text',
    isRequired: true,
    from: ({ ended }) => ended.kind,
    shown: { schema: z.enum(['live', 'batch', 'imported']) },
    filter: { isExact: true },
  },
  operation: { type: 'text', isRequired: true, from: ({ ended }) => ended.operation, shown: {} },
  request_id: { type: 'text', isRequired: true, from: ({ ended }) => ended.requestId, shown: {} },
  trace_id: {
    type: 'text',
    from: ({ ended }) => ended.trace.traceId,
    shown: {},
    filter: { list: 'trace_id' },
    exportedAs: 'trace_id',
  },
  span_id: { type: 'text', from: ({ ended }) => ended.trace.spanId, shown: {}, filter: { list: 'span_id' } },
  parent_span_id: { type: 'text', from: ({ ended }) => ended.trace.parentSpanId, shown: {} },
  span_name: { type: 'text', from: ({ ended }) => ended.trace.spanName, shown: {} },
  metadata: {
    type: 'json',
    from: ({ ended }) => ended.call.metadata,
    shown: { schema: z.record(z.string(), z.string()) },
    exportedAs: 'metadata',
  },
  key_id: {
    type: 'text',
    from: ({ ended }) => ended.call.keyId,
    shown: { name: 'api_key_id' },
    filter: { list: 'api_key_ids' },
    isRolledUp: true,
  },
  user_id: { type: 'text', from: ({ ended }) => ended.userId, shown: {} },
  virtual_key: {
    type: 'text',
    // An imported call used no virtual key of this installation.
    from: ({ ended: { kind, call } }) => (kind === 'imported' ? null : (call.target?.label ?? null)),
    shown: {},
    filter: { list: 'virtual_keys', description: 'slugs', isExact: true },
    isRolledUp: true,
  },
  integration: { type: 'text', from: ({ ended }) => ended.call.target?.integration ?? null, shown: {} },
  config_id: { type: 'text', from: ({ ended }) => ended.call.config?.id ?? null },
  // The slug and version that the config had when the call was made.
  config: {
    type: 'text',
    from: ({ ended }) => ended.call.config?.slug ?? null,
    filter: { list: 'configs', description: 'slugs' },
    exportedAs: 'config',
    isRolledUp: true,
  },
  config_version: { type: 'integer', from: ({ ended }) => ended.call.config?.version ?? null },
  mode: {
    type: 'text',
    isRequired: true,
    from: ({ ended }) => modeOf(ended),
    shown: { description: 'The strategy of the config: single, fallback, loadbalance or conditional.' },
    exportedAs: 'mode',
  },
  prompt_slug: {
    type: 'text',
    from: ({ ended }) => ended.call.prompt?.slug ?? null,
    shown: {},
    filter: { list: 'prompt_slug' },
    exportedAs: 'prompt_slug',
    isRolledUp: true,
  },
  prompt_version: { type: 'integer', from: ({ ended }) => ended.call.prompt?.version ?? null, shown: {} },
  method: { type: 'text', isRequired: true, from: ({ ended }) => ended.method, shown: {} },
  path: {
    type: 'text',
    isRequired: true,
    from: ({ ended }) => ended.url ?? ended.call.pathname,
    shown: {},
    exportedAs: 'request_url',
  },
  provider: {
    type: 'text',
    from: ({ ended }) => ended.call.target?.provider ?? null,
    shown: {},
    filter: { isExact: true },
    exportedAs: 'ai_org',
    isRolledUp: true,
  },
  model: {
    type: 'text',
    from: ({ ended }) => ended.call.model,
    shown: { description: 'the requested model' },
    filter: { list: 'ai_model', description: 'requested models', isExact: true },
    isRolledUp: true,
  },
  response_model: {
    type: 'text',
    from: ({ ended }) => ended.end.responseModel ?? null,
    shown: { description: 'The model that the provider reported.' },
  },
  provider_request_id: {
    type: 'text',
    isPerLine: true,
    from: ({ ended }) => ended.end.providerRequestId ?? null,
    shown: {},
  },
  stream: { type: 'boolean', isRequired: true, from: ({ ended }) => ended.stream, shown: {} },
  status: {
    type: 'integer',
    from: ({ ended }) => ended.end.status,
    shown: { description: 'The HTTP status of the answer. Null if there was no answer.' },
    exportedAs: 'response_status_code',
    isRolledUp: true,
  },
  error_code: { type: 'text', from: ({ ended }) => ended.end.errorCode, shown: {} },
  finish_reason: { type: 'text', isPerLine: true, from: ({ ended }) => ended.end.finishReason ?? null, shown: {} },
  attempts: {
    type: 'integer',
    isRequired: true,
    from: ({ ended: { call, end } }) => call.earlierAttempts.length + end.attempts.length,
    shown: { description: 'The number of attempts.' },
  },
  retries: {
    type: 'integer',
    isRequired: true,
    from: ({ ended: { call, end } }) => (call.retries ?? 0) + Math.max(0, end.attempts.length - 1),
    shown: { description: 'The number of retries at the same target.' },
  },
  fallbacks: {
    type: 'integer',
    isRequired: true,
    from: ({ ended }) => ended.call.fallbacks ?? 0,
    shown: { description: 'The number of targets that failed before another one was tried.' },
  },
  cache_status: {
    type: 'text',
    from: ({ ended }) => ended.end.cacheStatus ?? null,
    shown: { description: 'HIT, MISS or REFRESH if the call was eligible for the cache.' },
    filter: { list: 'cache_status', description: 'The cache status, such as HIT or MISS.' },
    isRolledUp: true,
  },
  duration_ms: {
    type: 'float',
    isPerLine: true,
    isRequired: true,
    from: ({ ended }) => toMicroseconds(ended.durationMs),
    shown: {},
  },
  upstream_ms: {
    type: 'float',
    isPerLine: true,
    isRequired: true,
    from: ({ ended: { call, end } }) =>
      toMicroseconds(upstreamMs(call.earlierAttempts) + upstreamMs(end.attempts) + (end.streamedMs ?? 0)),
    shown: { description: 'The part of the duration spent at providers.' },
  },
  first_event_ms: {
    type: 'float',
    from: ({ ended: { end } }) => (end.firstEventMs === undefined ? null : toMicroseconds(end.firstEventMs)),
    shown: { description: 'Milliseconds until the first event of a stream.' },
  },
  input_tokens: {
    type: 'integer',
    isPerLine: true,
    from: ({ ended }) => ended.end.usage?.inputTokens ?? null,
    shown: { in: 'usage' },
    exportedAs: 'req_units',
  },
  cached_tokens: {
    type: 'integer',
    isPerLine: true,
    from: ({ ended }) => ended.end.usage?.cachedTokens ?? null,
    shown: { in: 'usage' },
  },
  cache_write_tokens: {
    type: 'integer',
    isPerLine: true,
    from: ({ ended }) => ended.end.usage?.cacheWriteTokens ?? null,
    shown: { in: 'usage' },
  },
  audio_input_tokens: {
    type: 'integer',
    from: ({ ended }) => ended.end.usage?.audioInputTokens ?? null,
    shown: { in: 'usage' },
  },
  output_tokens: {
    type: 'integer',
    isPerLine: true,
    from: ({ ended }) => ended.end.usage?.outputTokens ?? null,
    shown: { in: 'usage' },
    exportedAs: 'res_units',
  },
  reasoning_tokens: {
    type: 'integer',
    isPerLine: true,
    from: ({ ended }) => ended.end.usage?.reasoningTokens ?? null,
    shown: { in: 'usage' },
  },
  audio_output_tokens: {
    type: 'integer',
    from: ({ ended }) => ended.end.usage?.audioOutputTokens ?? null,
    shown: { in: 'usage' },
  },
  usage_details: {
    type: 'json',
    from: ({ ended, units }) => detailsOf(ended.end.usage ?? null, units),
    shown: {
      in: 'usage',
      name: 'details',
      schema: z.record(z.string(), z.unknown()),
      description:
        'Images, seconds, characters, searches, other tokens and the service tier, where applicable. `usage_implausible` is true if the provider reported more than the request can have used; the tokens are then an estimate.',
    },
  },
  cost: {
    type: 'cents',
    isPerLine: true,
    from: ({ cost }) => cost.cents,
    shown: {
      name: 'cost_usd',
      description:
        'US dollars for all attempts, as a decimal. 0 for an answer from the cache, null if the price or the usage is unknown.',
    },
    exportedAs: 'cost',
  },
  saved_cost: {
    type: 'cents',
    isPerLine: true,
    from: ({ cost }) => cost.savedCents,
    shown: { name: 'saved_cost_usd', description: 'US dollars that an answer from the cache would have cost.' },
  },
  is_estimate: {
    type: 'boolean',
    isRequired: true,
    from: ({ cost }) => cost.isEstimate,
    shown: {
      description:
        'Whether usage and cost are estimated from the length, or exclude the possible cost of an attempt without an answer.',
    },
  },
  price_version: {
    type: 'text',
    from: ({ cost }) => cost.version,
    shown: { description: 'The version of the price table. The same version gives the same cost.' },
  },
  batch_id: { type: 'text', from: ({ ended }) => ended.batch?.id ?? null, shown: {}, filter: { isExact: true } },
  batch_line: { type: 'integer', isPerLine: true, from: ({ ended }) => ended.batch?.line ?? null, shown: {} },
  last_used_option: {
    type: 'text',
    from: ({ ended }) => ended.option,
    shown: { description: 'The target of the config that answered, such as config.targets[1].' },
  },
  // The blob with the recorded bodies. The code that records them sets it.
  bodies_blob: { type: 'text', from: (): string | null => null },
  // The attempts and guardrails of the call (record/call-steps.ts); null if there was one attempt and nothing else.
  steps: { type: 'json', isPerLine: true, from: ({ steps }) => steps },
  process_id: { type: 'uuid', isRequired: true, shown: { description: 'The gateway process that wrote the record.' } },
  sequence: {
    type: 'integer',
    isPerLine: true,
    isRequired: true,
    shown: {
      description:
        'The number of the record within that process, starting at 1. A missing number means that a record was lost.',
    },
  },
  // One value of a pack, so that lines with the same results stay in one pack and take no space each.
  guardrails: {
    type: 'json',
    from: ({ verdicts }) => verdicts,
    shown: {
      schema: z.array(CallVerdict),
      description:
        'The result of each guardrail that the call waited for, in order, at most the last 100. Null without guardrails.',
    },
    exportedAs: 'guardrails',
  },
  // Set by the code that has the bodies (record/body-digests.ts), where a workspace asks for them.
  sha256_salt: {
    type: 'text',
    isPerLine: true,
    from: (): string | null => null,
    shown: { description: 'The 16 random bytes before the body in both digests, in hex. Null without digests.' },
    exportedAs: 'sha256_salt',
  },
  request_sha256: {
    type: 'text',
    isPerLine: true,
    from: (): string | null => null,
    shown: { description: 'The SHA-256 of the salt and the body of the request, in hex.' },
    exportedAs: 'request_sha256',
  },
  answer_sha256: {
    type: 'text',
    isPerLine: true,
    from: (): string | null => null,
    shown: { description: 'The SHA-256 of the salt and the body of the answer, in hex. Null if there was no answer.' },
    exportedAs: 'answer_sha256',
  },
  public_model: {
    type: 'text',
    from: ({ ended }) => ended.call.leaf?.publicModel?.name ?? null,
    shown: { description: 'The name of the public model in the call. Null for a call without one.' },
    filter: { isExact: true },
    exportedAs: 'public_model',
  },
  session_id: {
    type: 'text',
    from: ({ ended }) => ended.call.session?.sessionId ?? null,
    shown: { description: 'The agent session that the call belongs to, as its client named it.' },
    filter: { list: 'session_id', description: 'agent sessions' },
    exportedAs: 'session_id',
  },
  agent_id: {
    type: 'text',
    from: ({ ended }) => ended.call.session?.agentId ?? null,
    shown: { description: 'The sub-agent of the session that made the call. Null for the main agent.' },
    filter: { list: 'agent_id', description: 'sub-agents' },
    exportedAs: 'agent_id',
  },
  parent_agent_id: {
    type: 'text',
    from: ({ ended }) => ended.call.session?.parentAgentId ?? null,
    shown: { description: 'The agent that started the sub-agent.' },
    exportedAs: 'parent_agent_id',
  },
  prompt_cache_saved: {
    type: 'cents',
    isPerLine: true,
    from: ({ cost }) => cost.promptCacheSavedCents ?? null,
    shown: {
      name: 'prompt_cache_saved_usd',
      description:
        "US dollars that the provider's prompt cache saved: the price of the same tokens without it, minus what was paid. Negative if writing cost more than reading saved. Null if no token was read or written.",
    },
    exportedAs: 'prompt_cache_saved',
  },
} as const satisfies Record<string, Column>;

export type ColumnName = keyof Columns;

/** A row of the table. */
export type RequestLogTable = {
  [Name in ColumnName]: Columns[Name] extends { from: (facts: CallFacts) => infer Value }
    ? Value
    : Values[Columns[Name]['type']];
};

/** The columns of which a pack has a value for each line. */
export type PerLine = NamesWith<{ isPerLine: true }>;

/**
 * Lines of a batch in one row of `request_log_pack`. An array that would only have nulls is null. JSON in an array is a
 * text, and request IDs follow from the batch and the line.
 */
export type RequestLogPackTable = Omit<RequestLogTable, PerLine | 'batch_id' | 'request_id'> & {
  [Name in PerLine]: (RequestLogTable[Name] | string)[] | null;
} & {
  batch_id: string;
  first_id: string;
  last_id: string;
  lines: number;
  sum_input_tokens: number;
  sum_output_tokens: number;
  sum_cached_tokens: number;
  sum_cache_write_tokens: number;
  /** In US cents. */
  sum_cost: string;
  sum_saved_cost: string;
  sum_prompt_cache_saved: string;
  sum_duration_us: number;
  /** The lines without a cost. */
  unpriced: number;
  /** `bin:lines,…` in the order of bins. */
  latency: string;
};

/** The names of the columns that have a property, such as a filter. */
export type NamesWith<Property> = {
  [Name in ColumnName]: Columns[Name] extends Property ? Name : never;
}[ColumnName];
export type Columns = typeof columns;

/** The same list for iteration. */
export const columnList: readonly (readonly [ColumnName, Column])[] = Object.entries(columns) as [ColumnName, Column][];

/** How the config of a call chooses among its targets. */
function modeOf({ call: { plan } }: EndedCall): string {
  const kind = plan?.root.kind;
  return kind === undefined || kind === 'leaf' ? 'single' : kind;
}

// Measurements are not more precise. 1.6622750000024098 would only suggest so.
const toMicroseconds = (ms: number): number => Math.round(ms * 1_000) / 1_000;

function upstreamMs(attempts: readonly { durationMs: number }[]): number {
  let sum = 0;
  for (const { durationMs } of attempts) sum += durationMs;
  return sum;
}

/** The counted usage that has no column; null: there is none. */
function detailsOf(usage: Usage | null, units: Units | null): Record<string, unknown> | null {
  const details: Record<string, unknown> = { ...units };
  if (usage !== null) {
    for (const [name, member] of otherDetails) if (usage[name] !== undefined) details[member] = usage[name];
  }
  return Object.keys(details).length === 0 ? null : details;
}

const otherDetails = [
  ['serviceTier', 'service_tier'],
  ['searches', 'searches'],
  ['cacheWriteHourTokens', 'cache_write_1h_tokens'],
  ['cachedAudioTokens', 'cached_audio_tokens'],
  ['imageInputTokens', 'image_input_tokens'],
  ['imageOutputTokens', 'image_output_tokens'],
  ['isImplausible', 'usage_implausible'],
] as const satisfies (readonly [keyof Usage, string])[];
