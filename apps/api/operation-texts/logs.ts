import type { Route } from '#libs/http/route.ts';
import type { OperationTexts } from '#libs/http/openapi.ts';

const notDone = { log_export_wrong_state: 'its status does not allow it' };

/** The request log, its exports, feedback, events and the audit log. */
export const logTexts: OperationTexts = {
  listLogs: {
    description:
      'The plain list, times and traces cost what a page costs. Other filters read backwards for at most ten seconds.',
    errors: { search_too_broad: 'so little matches that the search takes too long: choose a shorter time' },
  },
  retrieveLog: { description: 'With the `steps` of the call, and its bodies where they were recorded.' },
  createLogs: {
    description: 'They are priced and counted in analytics like others, but in no budget or rate.',
    example: {
      request: { url: 'https://api.openai.com/v1/chat/completions', body: { model: 'gpt-4o-mini' } },
      response: {
        status: 200,
        response_time: 840,
        body: { model: 'gpt-4o-mini', usage: { prompt_tokens: 20, completion_tokens: 300 } },
      },
    },
  },
  createLogExport: {
    description: 'It is started by another operation; a worker writes the file, and goes on with it after a crash.',
    example: {
      filters: { status_code: [429, 500] },
      requested_data: ['id', 'created_at', 'ai_model', 'cost'],
      format: 'csv',
    },
  },
  listLogExports: {
    description: 'Newest first, with the status, the number of records and the size of each.',
  },
  retrieveLogExport: {
    description:
      'Its status, filters and columns; while it is written, how many records it has so far. Drafts say in `total` how many would match.',
  },
  updateLogExport: {
    description: 'Filters and columns of an export that was not started.',
    example: { filters: { status_code: [500, 503] }, requested_data: ['id', 'created_at', 'response_status_code'] },
    errors: { log_export_not_draft: 'it was started' },
  },
  deleteLogExport: {
    description: 'With its file, and its link ends.',
    errors: { log_export_in_progress: 'a worker writes it: cancel it first' },
  },
  startLogExport: {
    description: 'The file has the records up to this moment.',
    errors: { ...notDone, too_many_log_exports: 'as many are in progress as may be' },
  },
  cancelLogExport: { description: 'The worker stops within a page of records.', errors: notDone },
  downloadLogExport: {
    description: 'Whoever has the link can read the file until it expires (`SLUICE_EXPORT_LINK_TTL`, 15 minutes).',
    errors: { ...notDone, log_export_expired: 'the file was deleted after its time' },
  },
  readLogExport: {
    description: 'The link of the download operation leads here; its query has a signature in the place of a key.',
    errors: {
      invalid_link: 'it was changed, or has expired',
      log_export_expired: 'the file was deleted after its time',
    },
  },
  listAuditLogs: {
    description:
      'The changes of records, each from its event, and requests of known keys that were refused. Filters by time, person, method, ' +
      'resource and status; `current_page` and `page_size` choose a page.',
  },
  listEvents: {
    description: 'Every change is an event. Ids grow, and a reader that goes on after the last one misses none.',
  },
  streamEvents: {
    description:
      'Server-sent events, each with its id. A client that connects again sends the last one as `Last-Event-ID`, as browsers do by ' +
      'themselves, and misses none.',
  },
  createFeedback: {
    description: 'Values from -10 to 10 for calls of a trace.',
    example: { trace_id: '01a209afc07470008001885eb92291f8', value: 1, weight: 1 },
  },
  updateFeedback: {
    description: 'By the id that creating it answered. Analytics count the new value for the time of the first one.',
    example: { value: -1, weight: 0.5 },
    errors: { feedback_not_found: 'there is none with this id in the workspace' },
  },
};

const analyticsErrors = {
  invalid_value: 'a filter is wrong, or the time is missing or too long; `param` names it',
  query_too_broad: 'it takes too long: choose a shorter time or fewer filters',
  too_many_queries: 'the workspace asks too much at once',
};
const period =
  'Needs `time_of_generation_min` and `time_of_generation_max`, at most 400 days apart; all filters must match. Read from rollups that ' +
  'are some seconds old, equal to the rows of the request log.';

/** What an operation of analytics says: all of them take the same filters. */
export function analyticsText({ path }: Route): OperationTexts[string] | undefined {
  if (path.startsWith('/v1/analytics/graphs/')) {
    const description = `A summary and points in time, each with its \`timestamp\`; points without calls are zero. ${period}`;
    return { description, errors: analyticsErrors };
  }
  if (path.startsWith('/v1/analytics/groups/')) {
    const description =
      'Requests, costs, tokens, errors and quantiles of durations of each value, most first or by `order_by`, in pages of `page_size`. ' +
      `Values that are not counted one by one are together in the last one (\`is_other\`). ${period}`;
    return { description, errors: analyticsErrors };
  }
  if (path.startsWith('/v1/analytics/'))
    return { description: `One object for the whole time. ${period}`, errors: analyticsErrors };
  return undefined;
}
