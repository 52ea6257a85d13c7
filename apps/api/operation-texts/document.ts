/**
 * Errors that any operation may answer with, so that none of them names them again.
 * @testOnly
 */
export const sharedErrors = {
  invalid_value: 'a parameter is wrong; `param` names it, and the message says what would be right (400)',
  missing_required_parameter: 'one is missing (400)',
  unknown_parameter: 'the query or the body has one that the operation does not have (400)',
  invalid_json: 'the body is no JSON (400)',
  missing_api_key: 'the request has no key (401)',
  invalid_api_key: 'the key is wrong, was revoked or has expired (401)',
  missing_scope: 'the key lacks the scope that the operation needs, which is in `x-scope` (403)',
  request_too_large: 'the body is larger than it may be (413)',
  too_many_failed_attempts: 'too many wrong keys came from this address (429)',
  workspace_too_large: 'the records of the workspace do not fit into memory; delete some (503)',
  server_overloaded: 'the process has more to do than it can hold; try again (503)',
  database_unavailable: 'the database cannot be reached; try again (503)',
  request_log_full: 'calls cannot be recorded for the moment, so none is made (503)',
} as const;

/** What the OpenAPI document says of the whole interface, in Markdown. */
export const documentText = `A self-hosted gateway and batch platform for language models, compatible with the OpenAI API.

**Version.** The version of this document (2.0.0) is that of the interface specification that the API implements. \
\`GET /\` and \`GET /v1/session\` name the release of the server.

**Keys.** A request has its key in \`x-gateway-api-key\`, or as a bearer token. A key acts in one workspace, by its scopes; a record of \
another workspace is answered like one that does not exist.

**Errors** have the form of OpenAI's: \`error\` with \`message\`, \`type\`, \`param\` and \`code\`. Answers with 429 and 503 say in \
\`Retry-After\` when to try again, and \`x-should-retry: false\` says that it would not help. Operations name the codes of their own; \
any of them may answer:

${Object.entries(sharedErrors)
  .map(([code, when]) => `- \`${code}\`: ${when}`)
  .join('\n')}

**Repeats.** An operation that creates something takes an \`Idempotency-Key\`: within a day, a repeat with the same body gets the first \
answer, with \`idempotent-replayed: true\`; another body gets 409.

**Lists** have \`data\`, \`has_more\`, \`first_id\` and \`last_id\`. The next page begins after \`last_id\`: send it as \`after\`. A page has \
at most 100 items unless the operation says otherwise.

**Times** are seconds since 1970 where OpenAI has them so (files, batches, fine-tuning jobs), and otherwise ISO 8601.`;
