// Search in a site that is opened from a folder: browsers start no worker there, so a hidden frame
// takes its place. It has the worker's events and loads the same script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.loaded = new Promise(done => {
        const script = this.inner.document.createElement("script")
        script.src = address
        script.onload = done
        this.inner.document.body.append(script)
      })
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
