import { queryOptions, type QueryClient } from '@tanstack/react-query';
import { send } from './api/client.ts';
import type { Answer, Session } from './api/types.ts';

/** The periods that pages offer, and their lengths. */
export const periods = {
  '1h': { text: 'Last hour', ms: 3_600_000 },
  '24h': { text: 'Last 24 hours', ms: 86_400_000 },
  '7d': { text: 'Last 7 days', ms: 7 * 86_400_000 },
  '30d': { text: 'Last 30 days', ms: 30 * 86_400_000 },
} as const;
export type Period = keyof typeof periods;

export const toPeriod = (text: string | undefined): Period =>
  text !== undefined && text in periods ? (text as Period) : '1h';

/** The analytics query for a period that ends now; `filters` use the API's names. */
function rangeOf(period: Period, filters: Readonly<Record<string, string>> = {}): Record<string, string> {
  const now = Date.now();
  return {
    time_of_generation_min: new Date(now - periods[period].ms).toISOString(),
    time_of_generation_max: new Date(now).toISOString(),
    ...filters,
  };
}

/** The answers of the graphs that pages show. */
export type GraphAnswers = {
  requests: Answer<'/v1/analytics/graphs/requests'>;
  errors: Answer<'/v1/analytics/graphs/errors'>;
  latency: Answer<'/v1/analytics/graphs/latency'>;
  tokens: Answer<'/v1/analytics/graphs/tokens'>;
  cost: Answer<'/v1/analytics/graphs/cost'>;
  'prompt-cache': Answer<'/v1/analytics/graphs/prompt-cache'>;
};

export type GraphName = keyof GraphAnswers;

type Context = { client: QueryClient; signal: AbortSignal };

async function read<Body>(
  what: string,
  query: Readonly<Record<string, string>>,
  { client, signal }: Context,
): Promise<Body> {
  // The pages show the workspace of the session. Without a workspace, an organisation key would query all of them.
  const session = client.getQueryData<Session>(['session']);
  const isOfAll = what === 'groups/workspace' || session === undefined;
  const asked = new URLSearchParams({ ...query, ...(isOfAll ? {} : { workspace_slug: session.workspace.id }) });
  const response = await send(`/v1/analytics/${what}?${asked}`, { signal });
  return (await response.json()) as Body;
}

/** One graph of analytics. It is read again when there are new calls, because its key begins with `calls`. */
export const graphQuery = <Name extends GraphName>(
  name: Name,
  period: Period,
  filters: Readonly<Record<string, string>> = {},
) =>
  queryOptions({
    queryKey: ['calls', 'graph', name, period, filters],
    queryFn: (context) => read<GraphAnswers[Name]>(`graphs/${name}`, rangeOf(period, filters), context),
    placeholderData: (previous) => previous,
  });

/** A row of `GET /v1/analytics/groups/…`; costs in US cents. */
export type Group = {
  requests?: number;
  cost?: number;
  is_other?: boolean;
  [column: string]: unknown;
};
export type Groups = { total: number; data: Group[]; has_more: boolean };

export const groupQuery = (
  by: string,
  period: Period,
  options: { orderBy?: string; limit?: number; filters?: Readonly<Record<string, string>> } = {},
) =>
  queryOptions({
    queryKey: ['calls', 'group', by, period, options],
    queryFn: (context) => {
      const { orderBy = 'requests', limit = 10, filters } = options;
      const query = { ...rangeOf(period, filters), order_by: orderBy, page_size: String(limit) };
      return read<Groups>(`groups/${by}`, query, context);
    },
    placeholderData: (previous) => previous,
  });

/** Filters for the calls that the simulator answered. Their prices are made up, and you are not billed for them. */
export const ofSimulator = { ai_org_model: 'simulator' };
