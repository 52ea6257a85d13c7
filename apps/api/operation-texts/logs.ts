import type { OperationTexts } from '#libs/http/openapi.ts';

const missing = { log_export_not_found: 'the key sees none with this id' };
const notDone = { ...missing, log_export_wrong_state: 'its status does not allow it' };
const unknownCursor = { invalid_value: '`after` names no event that is still there' };

/** The request log, its exports, feedback, events and the audit log. */
export const logTexts: OperationTexts = {
  listLogs: {
    description:
      'The plain list, times and traces cost what a page costs. Other filters read backwards for at most ten seconds.',
    errors: { search_too_broad: 'so little matches that the search takes too long: choose a shorter time' },
  },
  retrieveLog: {
    description:
      'With the `steps` of the call. Recorded bodies need the scope `bodies.read` (those of batch lines `batches.read`), and reading them leaves an event. Without the scope they are null.',
  },
  createLogs: {
    description:
      'They are priced and counted in analytics like others, but in no budget or rate. All or none of a list is taken; a repeat is recorded again. A list has at most 1,000 records, 4 MiB and 60,000 JSON members.',
    example: {
      request: { url: 'https://api.openai.com/v1/chat/completions', body: { model: 'gpt-4o-mini' } },
      response: {
        status: 200,
        response_time: 840,
        body: { model: 'gpt-4o-mini', usage: { prompt_tokens: 20, completion_tokens: 300 } },
      },
    },
    errors: {
      request_log_full: 'the log cannot be written for the moment',
      workspace_not_found: 'the query names none that the key may use',
    },
  },
  createLogExport: {
    description:
      'It is started by another operation; `total` says how many records match now. The columns `request` and `response` need the scope `bodies.read`, here and to download the file.',
    errors: {
      too_many_log_exports: 'the workspace has as many as it may have',
      workspace_not_found: '`workspace_id` names none that the key may use',
      idempotency_key_reused: 'the `Idempotency-Key` came before with another body',
    },
    example: {
      filters: { status_code: '429,500' },
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
    example: { filters: { status_code: '500,503' }, requested_data: ['id', 'created_at', 'response_status_code'] },
    errors: { ...missing, log_export_not_draft: 'it was started' },
  },
  deleteLogExport: {
    description: 'Its file is deleted too, and its link ends.',
    errors: { log_export_in_progress: 'a worker writes it: cancel it first' },
  },
  startLogExport: {
    description:
      'A worker writes the file, which has the records up to this moment, and goes on with it after a crash. Repeating it changes nothing.',
    errors: { ...notDone, too_many_log_exports: 'as many are in progress as may be' },
  },
  cancelLogExport: {
    description: 'The worker stops soon. Repeating it changes nothing; an export that has ended cannot be cancelled.',
    errors: notDone,
  },
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
      'resource and status; `current_page` and `page_size` choose a page. An organisation key sees all workspaces and the records of ' +
      'the organisation unless the query names a workspace.',
  },
  listEvents: {
    description: 'Every change is an event. A reader that goes on after the id of the last one misses none.',
    errors: unknownCursor,
  },
  replayEvents: {
    description:
      'Folds the events of the record, as its row was folded when they were appended. `version` or `at` choose the moment; without either ' +
      'it is the newest. At most five seconds of reading.',
    errors: { replay_too_long: 'the record has too many events: choose an earlier moment' },
  },
  streamEvents: {
    description:
      'Server-sent events, each with its id. A client that connects again sends the last one as `Last-Event-ID`, as browsers do by ' +
      'themselves, and misses none. With `calls=true` there is also `event: calls` when the request log has new records.',
    errors: {
      ...unknownCursor,
      too_many_streams: 'the process or the workspace has as many streams open as it may have',
    },
  },
  createFeedback: {
    description:
      'Values from -10 to 10 for the calls of a trace, one or up to 100 at once, all or none. With an `Idempotency-Key` a repeat adds nothing.',
    errors: { too_much_feedback: 'the trace has as much as it may have' },
    example: { trace_id: '01a209afc07470008001885eb92291f8', value: 1, weight: 1 },
  },
  updateFeedback: {
    description: 'By the id that creating it answered. Analytics count the new value for the time of the first one.',
    example: { value: -1, weight: 0.5 },
    errors: { feedback_not_found: 'there is none with this id in the workspace' },
  },
};
