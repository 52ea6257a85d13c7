/** The types of Anthropic's errors (platform.claude.com/docs, "Errors"), by status. */
const byStatus: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  402: 'billing_error',
  403: 'permission_error',
  404: 'not_found_error',
  412: 'billing_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
  529: 'overloaded_error',
};

/** The type of an error with this status in Anthropic's format. */
export const messageErrorType = (status: number): string =>
  byStatus[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error');

/** The operations of Anthropic's API, whose errors and rate limits have its form. */
const operations: ReadonlySet<string | undefined> = new Set(['messages', 'count_tokens']);
export const hasMessageForm = (operation: string | undefined): boolean => operations.has(operation);
