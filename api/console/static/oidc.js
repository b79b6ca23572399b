// Hands the ID token that the page of a login has to the tab that has opened its window, or else keeps it in this
// tab and opens the console.
const read = (name) => document.querySelector(`meta[name=${name}]`)?.content

if (read('renew')) {
  const channel = new BroadcastChannel(read('renew'))
  channel.onmessage = () => close()
  channel.postMessage(read('token'))
  document.body.textContent = 'You are logged in. You can close this window.'
} else {
  const to = sessionStorage.getItem('anneal.return') || ''
  sessionStorage.removeItem('anneal.return')
  sessionStorage.setItem('anneal.key', read('token'))
  location.replace(to.startsWith('#') ? `/${to}` : '/')
}
